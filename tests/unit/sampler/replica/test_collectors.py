"""Rows are kept or handed on, and counted in accesses to lines, as the models count them."""

from __future__ import annotations

import numpy as np
import pytest

from memsampd.errors import UsageError
from memsampd.models.lines import line_stream
from memsampd.sampler.records import AccessChunk
from memsampd.sampler.shadow.collectors import Lines, Rows, count_accesses


def chunk_of(seed: int, rows: int) -> AccessChunk:
    rng = np.random.default_rng(seed)
    return AccessChunk(
        rng.integers(0, 1 << 40, rows).astype(np.uint64),
        rng.integers(0, 1 << 20, rows).astype(np.uint64),
        rng.choice([1, 2, 8, 64, 512], rows).astype(np.uint16),
        rng.random(rows) < 0.5,
    )


@pytest.mark.parametrize("line_bytes", [32, 64, 128])
def test_accesses_are_those_of_the_models(line_bytes: int) -> None:
    rows = chunk_of(line_bytes, 5000)
    expected = len(line_stream(rows.address, rows.size_bytes, line_bytes))
    assert count_accesses(rows.address, rows.size_bytes, line_bytes) == expected


@pytest.mark.parametrize("line_bytes", [0, 1, 48])
def test_lines_must_be_powers_of_two(line_bytes: int) -> None:
    with pytest.raises(UsageError, match="power of two"):
        Lines(line_bytes, lambda chunk: None)


class Recorded:
    """A core that has recorded these chunks."""

    def __init__(self, chunks: list[AccessChunk]) -> None:
        self._chunks = list(chunks)

    def take(self) -> tuple[bytes, bytes, bytes, bytes, int, int]:
        chunk = self._chunks.pop(0)
        columns = (chunk.ip, chunk.address, chunk.size_bytes, chunk.is_write)
        ip, address, size_bytes, is_write = (column.tobytes() for column in columns)
        return ip, address, size_bytes, is_write, 2 * len(chunk), 1

    def take_lines(self, shift: int, /) -> tuple[bytes, int, int, int, int, int]:
        raise AssertionError("rows are wanted")


def test_rows_are_counted_and_kept_or_handed_on() -> None:
    chunks = [chunk_of(seed, 1000 * seed) for seed in range(4)]
    seen: list[AccessChunk] = []
    kept, streamed = Rows(), Rows(seen.append, 64)
    for rows in (kept, streamed):
        core = Recorded(chunks)
        for _ in chunks:
            rows.take(core)
        assert (rows.rows, rows.instructions, rows.prefetches) == (6000, 12000, 4)
    for name in ("ip", "address", "size_bytes", "is_write"):
        expected = np.concatenate([getattr(chunk, name) for chunk in chunks])
        np.testing.assert_array_equal(getattr(kept.kept(), name), expected)
        handed_on = np.concatenate([getattr(chunk, name) for chunk in seen])
        np.testing.assert_array_equal(handed_on, expected)
    assert len(streamed.kept()) == kept.accesses == 0
    assert streamed.accesses == sum(
        len(line_stream(chunk.address, chunk.size_bytes, 64)) for chunk in chunks
    )
