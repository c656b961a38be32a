"""Exact misses of a whole run, window by window."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd.models.exact import ExactLru, ExactRandom
from reference.records import LINE_BYTES, Block, Stretch

KIB = 1 << 10
ERROR_SIZES_BYTES: tuple[int, ...] = tuple(KIB << i for i in range(12))  # 1 KiB .. 2 MiB
LRU_SIZES_BYTES: tuple[int, ...] = tuple(KIB << i for i in range(17))  # .. 64 MiB
FINE_SIZES_BYTES: tuple[int, ...] = (
    *(((4 + part) * KIB << octave) // 4 for octave in range(16) for part in range(4)),
    LRU_SIZES_BYTES[-1],
)
"""Sizes of which LRU misses are kept: four an octave, the others among them."""

WINDOWS = 600
SAMPLES_A_WINDOW = 1000
QUANTUM_ACCESSES = 1 << 19
AHEAD = 8  # stretches that wait for a simulation


def _reuse_edges() -> NDArray[np.int64]:
    """Return exact distances up to 8, then four bins an octave up to 2^40."""
    octaves = [(4 + part) << octave for octave in range(1, 38) for part in range(4)]
    return np.array([*range(8), *octaves, 1 << 40], dtype=np.int64)


REUSE_EDGES = _reuse_edges()
"""Bin b of reuse distances holds ``edges[b] <= d < edges[b + 1]``, in accesses between touches."""


@dataclass(frozen=True, slots=True)
class BlockSamples:
    """Blocks of code in which the program was, sampled at random instructions, by window.

    A block begins where a jump, a call or a return goes and ends at one (valgrind's superblocks: it
    may follow unconditional jumps, and a branch may leave it early). Every instruction has the same
    chance of being sampled: shares are those of instructions executed, as of instruction pointers
    sampled in time. Shares of blocks entered, as of taken branches, are these divided by
    ``instructions``.

    Attributes:
        objects: files that code was mapped from; "" is memory without a file.
        object_index: which of them a block lies in, shape (b,), int64.
        offset: its first byte in that file, or its address without one, shape (b,), int64.
        instructions: instructions from its beginning to its end, shape (b,), int64.
        starts: the samples of window w are ``starts[w]`` to ``starts[w + 1]`` - 1, shape (w + 1,).
        block: index of a block, ascending within a window, each once, shape (n,), int64.
        counts: how often it was sampled in the window, shape (n,), int64.
    """

    objects: tuple[str, ...]
    object_index: NDArray[np.int64]
    offset: NDArray[np.int64]
    instructions: NDArray[np.int64]
    starts: NDArray[np.int64]
    block: NDArray[np.int64]
    counts: NDArray[np.int64]

    def table(self) -> NDArray[np.int64]:
        """Return how often each block was sampled in each window, shape (w, b)."""
        windows = len(self.starts) - 1
        table = np.zeros((windows, len(self.offset)), dtype=np.int64)
        table[np.repeat(np.arange(windows), np.diff(self.starts)), self.block] = self.counts
        return table


@dataclass(frozen=True, slots=True)
class RunMisses:
    """Misses of one run in windows of equal numbers of accesses.

    Attributes:
        accesses: accesses of each window, shape (w,), int64; all but the last are equal.
        instructions: instructions of each window, shape (w,), int64.
        lru_fine: misses, first touches included, shape (w, len(FINE_SIZES_BYTES)), int64.
        random: the same with random replacement, shape (w, len(ERROR_SIZES_BYTES)), int64.
        reuses: accesses by reuse distance, shape (w, len(REUSE_EDGES) - 1), int64.
        distinct_lines: lines touched by the run.
        branches: samples of the blocks that it was in.
    """

    accesses: NDArray[np.int64]
    instructions: NDArray[np.int64]
    lru_fine: NDArray[np.int64]
    random: NDArray[np.int64]
    reuses: NDArray[np.int64]
    distinct_lines: int
    branches: BlockSamples

    @property
    def lru(self) -> NDArray[np.int64]:
        """Misses, shape (w, len(LRU_SIZES_BYTES)), int64."""
        return self.lru_fine[:, [FINE_SIZES_BYTES.index(size) for size in LRU_SIZES_BYTES]]


class _Simulation:
    """Feeds runs to caches in a thread of its own; a row of counts for every quantum."""

    def __init__(
        self,
        feed: Callable[[NDArray[np.uint64]], None],
        take: Callable[[], tuple[NDArray[np.int64], ...]],
    ) -> None:
        self._feed, self._take = feed, take
        self._queue: queue.Queue[NDArray[np.uint64] | None] = queue.Queue(maxsize=AHEAD)
        self._rows: list[tuple[NDArray[np.int64], ...]] = []

    def work(self) -> list[NDArray[np.int64]]:
        """Simulate until the end; returns a table for each array that ``take`` gives."""
        try:
            while (runs := self._queue.get()) is not None:
                if len(runs):
                    self._feed(runs)
                else:
                    self._rows.append(self._take())
        except BaseException:
            while self._queue.get() is not None:  # nobody shall wait for room
                pass
            raise
        return [np.array(column) for column in zip(*self._rows, strict=True)]

    def put(self, runs: NDArray[np.uint64]) -> None:
        if len(runs):  # an empty array ends a row
            self._queue.put(runs)

    def end_row(self) -> None:
        self._queue.put(np.empty(0, np.uint64))

    def end(self) -> None:
        self._queue.put(None)


def simulate(
    pieces: Iterable[Stretch],
    blocks: Sequence[Block] = (),
    *,
    seed: int = 1,
    windows: int = WINDOWS,
    quantum_accesses: int = QUANTUM_ACCESSES,
) -> RunMisses:
    """Simulate fully associative caches over a run of unknown length.

    Misses are counted for every quantum; whole numbers of quanta then make at most ``windows``
    windows and perhaps a shorter last one.

    Args:
        pieces: stretches in program order, none of which goes on beyond a multiple of the quantum.
        blocks: what the samples refer to; may be filled while the pieces come.
        seed: of random replacement, and of the choice of samples.
        windows: the most full windows wanted.
        quantum_accesses: accesses a quantum.

    Raises:
        ValueError: a stretch goes on beyond the end of a quantum.
    """
    lru = ExactLru(_lines(FINE_SIZES_BYTES), reuse_bounds=REUSE_EDGES[1:-1].tolist())
    random = ExactRandom(_lines(ERROR_SIZES_BYTES), seed)
    simulations = (
        _Simulation(lru.feed_runs, lambda: (lru.take_misses().misses, lru.take_reuses())),
        _Simulation(random.feed_runs, lambda: (random.take_misses().misses,)),
    )
    rows: list[tuple[int, int]] = []  # accesses and instructions of each quantum
    samples: list[NDArray[np.int64]] = []
    quantum_of_samples: list[NDArray[np.int64]] = []
    filled = instructions = 0

    def end_quantum() -> None:
        rows.append((filled, instructions))
        for simulation in simulations:
            simulation.end_row()

    with ThreadPoolExecutor(len(simulations)) as beside:  # they release the GIL while they are fed
        results = [beside.submit(simulation.work) for simulation in simulations]
        try:
            for piece in pieces:
                for simulation in simulations:
                    simulation.put(piece.runs)
                samples.append(piece.samples)
                quantum_of_samples.append(np.full(len(piece.samples), len(rows)))
                filled += piece.accesses
                instructions += piece.instructions
                if filled > quantum_accesses:
                    raise ValueError("a stretch goes on beyond the end of a quantum")
                if filled == quantum_accesses:
                    end_quantum()
                    filled = instructions = 0
            if filled or not rows:
                end_quantum()
        finally:
            for simulation in simulations:
                simulation.end()
    lru_misses, reuses = results[0].result()
    (random_misses,) = results[1].result()

    quanta = -(-len(rows) // windows)
    starts = np.arange(0, len(rows), quanta)
    window_of_samples = _joined(quantum_of_samples) // quanta
    accesses, executed = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return RunMisses(
        np.add.reduceat(accesses, starts),
        np.add.reduceat(executed, starts),
        np.add.reduceat(lru_misses, starts, axis=0),
        np.add.reduceat(random_misses, starts, axis=0),
        np.add.reduceat(reuses, starts, axis=0),
        lru.distinct_lines,
        _block_samples(_joined(samples), window_of_samples, len(starts), blocks, seed),
    )


def _block_samples(
    samples: NDArray[np.int64],
    window: NDArray[np.int64],
    windows: int,
    blocks: Sequence[Block],
    seed: int,
) -> BlockSamples:
    """Sort samples, thinned at random where there are too many, by window and block."""
    if len(samples) > windows * SAMPLES_A_WINDOW:
        kept = np.random.default_rng(seed).random(len(samples)) < (
            windows * SAMPLES_A_WINDOW / len(samples)
        )
        samples, window = samples[kept], window[kept]
    numbers, sample_of = np.unique(samples, return_inverse=True)
    # What was translated again has another number: places in files are what stays.
    places = sorted({(blocks[n].file, blocks[n].offset) for n in numbers.tolist()})
    index = {place: i for i, place in enumerate(places)}
    block_of = np.array([index[blocks[n].file, blocks[n].offset] for n in numbers], np.int64)
    objects = sorted({file for file, _ in places})
    instructions = np.zeros(len(places), np.int64)
    for n, block in zip(numbers.tolist(), block_of.tolist(), strict=True):
        instructions[block] = max(instructions[block], blocks[n].instructions)
    key = window * max(len(places), 1) + (block_of[sample_of] if len(numbers) else samples)
    keys, counts = np.unique(key, return_counts=True)
    window_of, block = np.divmod(keys, max(len(places), 1))
    return BlockSamples(
        objects=tuple(objects),
        object_index=np.array([objects.index(file) for file, _ in places], np.int64),
        offset=np.array([offset for _, offset in places], np.int64),
        instructions=instructions,
        starts=np.searchsorted(window_of, np.arange(windows + 1)).astype(np.int64),
        block=block.astype(np.int64),
        counts=counts.astype(np.int64),
    )


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _lines(sizes_bytes: Sequence[int]) -> list[int]:
    return [size // LINE_BYTES for size in sizes_bytes]
