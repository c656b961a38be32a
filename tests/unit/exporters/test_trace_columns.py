from __future__ import annotations

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tracing_rows import Row, chunk_of, invented, row, rows_of

from memsampd.exporters.trace import columns
from memsampd.exporters.trace.columns import decode, encode
from memsampd.sampler.records import AccessChunk


@settings(deadline=None)
@given(st.lists(row, min_size=1, max_size=200))
def test_what_is_encoded_is_decoded(wanted: list[Row]) -> None:
    found = decode(encode(chunk_of(wanted)))
    assert rows_of(found) == wanted
    assert [a.dtype for a in (found.ip, found.address, found.size_bytes, found.is_write)] == [
        np.uint64,
        np.uint64,
        np.uint16,
        np.bool_,
    ]


@settings(deadline=None, max_examples=50)
@given(st.lists(row, min_size=1, max_size=200), st.integers(1, 3))
def test_sites_are_those_of_a_dictionary_however_small_the_table(
    wanted: list[Row], table_bits: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_TABLE_BITS", table_bits)
        firsts, sites = columns._find_sites(chunk_of(wanted))
    numbers: dict[tuple[int, int, bool], int] = {}
    expected = [
        numbers.setdefault((ip, size, write), len(numbers)) for ip, _, size, write in wanted
    ]
    assert sites.tolist() == expected
    assert firsts.tolist() == [expected.index(number) for number in range(len(numbers))]


def test_more_sites_than_16_bits() -> None:
    random = np.random.default_rng(3)
    count = 150_000
    chunk = AccessChunk(
        random.integers(0, 100_000, count).astype(np.uint64),
        random.integers(0, 2**63, count).astype(np.uint64),
        np.full(count, 8, np.uint16),
        random.random(count) < 0.5,
    )
    block = encode(chunk)
    assert block.sites > 1 << 16
    found = decode(block)
    assert np.array_equal(found.ip, chunk.ip)
    assert np.array_equal(found.address, chunk.address)
    assert np.array_equal(found.is_write, chunk.is_write)


def test_a_loop_needs_less_than_a_byte_a_row() -> None:
    """A quarter of these addresses are chance: 10 bits each, 0.31 bytes a row."""
    chunk = invented(200_000)
    stored = zstandard.compress(msgspec.msgpack.encode(encode(chunk)))
    assert len(stored) / len(chunk) < 0.6


GOOD = encode(chunk_of([(1, 10, 8, False), (2, 20, 8, True), (1, 18, 8, False)]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 2}, "wrong length"),
        ({"rows": 0}, "out of range"),
        ({"rows": 1 << 40}, "out of range"),
        ({"sites": 0}, "out of range"),
        ({"sites": 4}, "out of range"),
        ({"sites": 3}, "wrong length"),
        ({"site_ip": GOOD.site_ip[:-1]}, "wrong length"),
        ({"site_size": b""}, "wrong length"),
        ({"site_is_write": b"\0\0"}, "wrong length"),
        ({"address_steps": GOOD.address_steps + b"\0"}, "wrong length"),
        ({"site_steps": bytes(12)}, "no site"),
        ({"site_steps": bytes([2, 4, 1] + 9 * [0])}, "no site"),
        ({"site_steps": bytes([2, 0, 0] + 9 * [0])}, "without rows"),
    ],
)
def test_columns_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(msgspec.structs.replace(GOOD, **changes))
