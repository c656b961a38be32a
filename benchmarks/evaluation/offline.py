"""Windows of a kept reference: what phase detector and models would have seen of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd.daemon.config import SessionConfig
from memsampd.models.statstack import StatStack
from memsampd.phases.windows import hash_bins
from memsampd.sampler.perf.costs import PERIODS_SECONDS
from reference.store import Reference
from reference.survival import survival_of
from reference.windows import ERROR_SIZES_BYTES

PRODUCT = SessionConfig()
SAMPLES = round(PRODUCT.window_seconds / PERIODS_SECONDS[0])  # a window
SIZES_BYTES = np.array(ERROR_SIZES_BYTES, dtype=np.int64)
WINDOW_ACCESSES = 100_000_000  # about 0.1 s of CPU time, and the window length of the papers
FEWEST_WINDOWS = 40


@dataclass(frozen=True, slots=True)
class OfflineWindows:
    """A whole run in windows of equal numbers of accesses, all of it exact.

    Attributes:
        name: the program.
        accesses: shape (w,).
        misses: LRU misses at ``SIZES_BYTES``, shape (w, s).
        instructions: shape (w,).
        reuses: accesses by reuse distance in bins of ``REUSE_EDGES``, shape (w, r), int64.
        cold: first touches, shape (w,), int64.
        block_shares: chance that a timer sample of the window hits each block, shape (w, b).
        block_names: what a block is called, shape (b,), uint64.
    """

    name: str
    accesses: NDArray[np.float64]
    misses: NDArray[np.float64]
    instructions: NDArray[np.float64]
    reuses: NDArray[np.int64]
    cold: NDArray[np.int64]
    block_shares: NDArray[np.float64]
    block_names: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.accesses)

    @property
    def miss_ratio(self) -> NDArray[np.float64]:
        """Misses per access of each window, shape (w, s)."""
        return self.misses / self.accesses[:, None]

    @property
    def overall(self) -> NDArray[np.float64]:
        """Misses per access of the whole run, shape (s,)."""
        return np.asarray(self.misses.sum(axis=0) / self.accesses.sum())

    def hits(
        self, seed: int, samples: int | None = SAMPLES, bins: int = PRODUCT.bins
    ) -> NDArray[np.float64]:
        """Draw branch vectors.

        Args:
            seed: of the drawing, and of the product's hash of branches into bins.
            samples: timer samples a window; None for their expectation (of 10,000).
            bins: length of a vector.

        Returns:
            Hits a bin, shape (w, bins).
        """
        bin_of_block = hash_bins(self.block_names, bins, seed)
        shares = np.zeros((len(self), bins))
        np.add.at(shares.T, bin_of_block, self.block_shares.T)
        shares /= shares.sum(axis=1, keepdims=True)
        if samples is None:
            return np.round(10_000 * shares)
        rng = np.random.default_rng(seed)
        return np.array([rng.multinomial(samples, share) for share in shares], dtype=float)

    def curve(self, windows: NDArray[np.intp]) -> Curve:
        """Model the windows given, pooled, from their exact reuse distances.

        Args:
            windows: indices, shape (n,).

        Returns:
            StatStack's miss ratio at ``SIZES_BYTES``, shape (s,).
        """
        survival = survival_of(self.reuses[windows].sum(axis=0), int(self.cold[windows].sum()))
        return StatStack().curve(survival, SIZES_BYTES).miss_ratio


Curve = NDArray[np.float64]


def windows_wanted(total_accesses: int, window_accesses: int = WINDOW_ACCESSES) -> int:
    """Return into how many windows a run is cut."""
    return max(round(total_accesses / window_accesses), FEWEST_WINDOWS)


def offline_windows(reference: Reference, windows: int | None = None) -> OfflineWindows:
    """Cut a reference into windows.

    Args:
        reference: of the run.
        windows: how many, about; by default windows of ``WINDOW_ACCESSES``.
    """
    blocks = reference.branches
    fine = len(reference.accesses)
    wanted = windows or windows_wanted(reference.total_accesses)
    starts = np.arange(0, fine, max(1, round(fine / wanted)))

    def summed(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.add.reduceat(rows, starts, axis=0).astype(float)

    # Entries times instructions of the block: where the time goes, as far as instructions tell.
    spent = summed(blocks.table() * np.maximum(blocks.instructions, 1))
    objects = np.array(
        [zlib.crc32(path.encode()) << 32 for path in blocks.objects], dtype=np.uint64
    )
    return OfflineWindows(
        name=reference.name,
        accesses=summed(reference.accesses),
        misses=summed(reference.lru[:, : len(SIZES_BYTES)]),
        instructions=summed(reference.instructions),
        reuses=np.add.reduceat(reference.reuses, starts, axis=0),
        cold=np.add.reduceat(reference.cold, starts),
        block_shares=spent / np.maximum(spent.sum(axis=1, keepdims=True), 1),
        block_names=objects[blocks.object_index] + blocks.offset.astype(np.uint64),
    )
