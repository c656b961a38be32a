"""What a twin's time is divided into: accesses to lines, as the models count them."""

from __future__ import annotations

import numpy as np
import pytest

from memsampd.models.lines import line_stream
from memsampd.sampler.records import AccessChunk
from memsampd.sampler.shadow.twin import CountedRows, count_accesses


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


def test_streamed_rows_are_counted_and_handed_on() -> None:
    chunks = [chunk_of(seed, 1000 * seed) for seed in range(4)]
    seen: list[AccessChunk] = []
    counted = CountedRows(64, seen.append)
    for chunk in chunks:
        counted.add(chunk)
    assert all(one is other for one, other in zip(seen, chunks, strict=True))
    assert counted.accesses == sum(
        len(line_stream(chunk.address, chunk.size_bytes, 64)) for chunk in chunks
    )
