"""Rows are kept or handed on; lines must be of a size that lines can have."""

from __future__ import annotations

import numpy as np
import pytest

from memsampd import _core
from memsampd.errors import UsageError
from memsampd.sampler.records import AccessChunk
from memsampd.sampler.replica.collectors import Counted, Rows


def chunk_of(seed: int, rows: int) -> AccessChunk:
    rng = np.random.default_rng(seed)
    return AccessChunk(
        rng.integers(0, 1 << 40, rows).astype(np.uint64),
        rng.integers(0, 1 << 20, rows).astype(np.uint64),
        rng.choice([1, 2, 8, 64, 512], rows).astype(np.uint16),
        rng.random(rows) < 0.5,
    )


@pytest.mark.parametrize("line_bytes", [0, 1, 48])
def test_lines_must_be_powers_of_two(line_bytes: int) -> None:
    with pytest.raises(UsageError, match="power of two"):
        Counted(line_bytes, _core.ReuseCounter())


def taken(chunk: AccessChunk) -> tuple[bytes, bytes, bytes, bytes, int, int]:
    """What the core hands over."""
    columns = (chunk.ip, chunk.address, chunk.size_bytes, chunk.is_write)
    ip, address, size_bytes, is_write = (column.tobytes() for column in columns)
    return ip, address, size_bytes, is_write, 2 * len(chunk), 1


def test_rows_are_counted_and_kept_or_handed_on() -> None:
    chunks = [chunk_of(seed, 1000 * seed) for seed in range(4)]
    seen: list[AccessChunk] = []
    kept, streamed = Rows(), Rows(seen.append)
    for rows in (kept, streamed):
        for chunk in chunks:
            rows.take(taken(chunk))
        assert (rows.rows, rows.instructions, rows.prefetches) == (6000, 12000, 4)
        assert rows.writes == sum(np.count_nonzero(chunk.is_write) for chunk in chunks)
    for name in ("ip", "address", "size_bytes", "is_write"):
        expected = np.concatenate([getattr(chunk, name) for chunk in chunks])
        np.testing.assert_array_equal(getattr(kept.kept(), name), expected)
        handed_on = np.concatenate([getattr(chunk, name) for chunk in seen])
        np.testing.assert_array_equal(handed_on, expected)
    assert len(streamed.kept()) == 0
