"""A small reference, made up: two kinds of code, locality that also changes in one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd.models.exact import ExactLru
from reference.store import Reference
from reference.windows import (
    FINE_SIZES_BYTES,
    LRU_SIZES_BYTES,
    REUSE_EDGES,
    BlockSamples,
)

WINDOW_ACCESSES = 4000
SAMPLES = 500
LINES = (20, 300, 2000)  # working sets of the three kinds of windows
BLOCKS = ((0, 1, 2), (0, 3, 4), (0, 3, 4))  # the last two kinds run the same code


def kinds(windows: int) -> list[int]:
    """Return the kind of each window: stretches of five."""
    return [(window // 5) % 3 for window in range(windows)]


def invented_reference(windows: int = 60, seed: int = 0) -> Reference:
    """Run made-up loops through exact caches and a brute-force reuse histogram."""
    rng = np.random.default_rng(seed)
    sizes_lines = [size // 64 for size in FINE_SIZES_BYTES]  # more than one simulator takes
    caches = [ExactLru(sizes_lines[:40]), ExactLru(sizes_lines[40:])]
    last: dict[int, int] = {}
    reuses = np.zeros((windows, len(REUSE_EDGES) - 1), dtype=np.int64)
    cold = np.zeros(windows, dtype=np.int64)
    fine = []
    starts = [0]
    blocks: list[int] = []
    counts: list[int] = []
    for window, kind in enumerate(kinds(windows)):
        lines = rng.integers(0, LINES[kind], WINDOW_ACCESSES).astype(np.uint64)
        for each in caches:
            each.feed(lines)
        fine.append(np.concatenate([each.take_misses().misses for each in caches]))
        distances = []
        for now, line in enumerate(lines.tolist(), WINDOW_ACCESSES * window):
            if line in last:
                distances.append(now - last[line] - 1)
            last[line] = now
        cold[window] = WINDOW_ACCESSES - len(distances)
        found = np.searchsorted(REUSE_EDGES, distances, side="right") - 1
        reuses[window] = np.bincount(found, minlength=len(REUSE_EDGES) - 1)
        hits = rng.multinomial(SAMPLES, [0.2, 0.4, 0.4])
        blocks += BLOCKS[kind]
        counts += hits.tolist()
        starts.append(len(blocks))
    misses = np.array(fine, dtype=np.int64)
    lru = misses[:, [FINE_SIZES_BYTES.index(size) for size in LRU_SIZES_BYTES]]
    return Reference(
        name="invented",
        accesses=np.full(windows, WINDOW_ACCESSES, dtype=np.int64),
        lru=lru,
        random=lru[:, :12],
        distinct_lines=len(last),
        made={},
        instructions=np.full(windows, 3 * WINDOW_ACCESSES, dtype=np.int64),
        lru_fine=misses,
        reuses=reuses,
        cold=cold,
        branches=BlockSamples(
            objects=("program",),
            object_index=np.zeros(5, dtype=np.int64),
            offset=np.arange(5, dtype=np.int64) * 64,
            instructions=np.full(5, 7, dtype=np.int64),
            starts=np.array(starts),
            block=np.array(blocks, dtype=np.int64),
            counts=np.array(counts, dtype=np.int64),
        ),
    )


def misses_alone(
    accesses: NDArray[np.int64], lru: NDArray[np.int64], random: NDArray[np.int64]
) -> Reference:
    """A reference of which only the misses are looked at."""
    nothing = np.empty((len(accesses), 0), np.int64)
    none = np.empty(0, np.int64)
    return Reference(
        name="example",
        accesses=accesses,
        lru=lru,
        random=random,
        distinct_lines=1000,
        made={},
        instructions=accesses,
        lru_fine=nothing,
        reuses=nothing,
        cold=none,
        branches=BlockSamples((), none, none, none, none, none, none),
    )
