"""What code bursts ran, and how alike it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memsampd import _core


class BurstCode:
    """Branch vectors of bursts, a row each, with a column for each bin that any of them ran.

    Columns are in the order of their bins' first appearance.

    Args:
        bins: length of branch vectors.
        capacity: bursts at most.

    Attributes:
        count: bursts: m.
    """

    def __init__(self, bins: int, capacity: int) -> None:
        self.count = 0
        self._column_of = np.full(bins, -1, np.int64)
        self._columns = 0
        self._shares = np.zeros((capacity, 64))
        self._alike = np.zeros((capacity, capacity))
        self._roots: NDArray[np.float64] | None = None

    @property
    def shares(self) -> NDArray[np.float64]:
        """Shares of instructions by column, zeros where not known, shape (m, columns + 1).

        Bins that no burst ran are one column, the last.
        """
        return self._shares[: self.count, : self._columns + 1]

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which bins any burst ran code of, shape (bins,)."""
        return self._column_of >= 0

    @property
    def alike(self) -> NDArray[np.float64]:
        """Bhattacharyya's coefficient of each two, 0..1, shape (m, m); 0 where one is not known."""
        return self._alike[: self.count, : self.count]

    def compact(self, vectors: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        """Return branch vectors with the columns of :attr:`shares`, shape (n, columns + 1).

        Args:
            vectors: hits by bin, whole numbers below 65536; zeros stand in for those of another
                length.
        """
        hits = [np.ascontiguousarray(each, np.uint16) for each in vectors]
        rows = _core.hits_by_column(hits, self._column_of, self._columns)
        return np.frombuffer(rows).reshape(len(hits), self._columns + 1)

    def likeness(
        self, vectors: Sequence[NDArray[Any]]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the coefficients of code with that of the bursts, and of which any is known.

        Args:
            vectors: as for :meth:`compact`, n of them.

        Returns:
            Shapes (n, m) and (n,).
        """
        hits = self.compact(vectors)
        shares = hits / np.maximum(hits.sum(axis=1, keepdims=True), 1)
        return np.sqrt(shares) @ self._square_roots().T, shares.any(axis=1)

    def put(self, row: int, code: NDArray[Any]) -> None:
        """Note what a burst ran.

        Args:
            row: which; the next one, or one that is there.
            code: its branch vector, hits, shape (bins,); of another length if it is not known.
        """
        self.count = max(self.count, row + 1)
        self._shares[row] = 0.0
        if len(code) == len(self._column_of):
            self._fill(row, code)
        self._compare(row)

    def _fill(self, row: int, code: NDArray[Any]) -> None:
        bins = np.flatnonzero(code)
        fresh = bins[self._column_of[bins] < 0]
        self._column_of[fresh] = np.arange(self._columns, self._columns + len(fresh))
        self._columns += len(fresh)
        lacking = self._columns + 1 - self._shares.shape[1]
        if lacking > 0:
            grown = max(lacking, self._shares.shape[1])
            self._shares = np.pad(self._shares, ((0, 0), (0, grown)))
        if len(bins):
            self._shares[row, self._column_of[bins]] = code[bins] / code.sum()

    def join(self, gone: int, into: int, share: float) -> None:
        """Have a row stand for another one, too, which counts so much of both; that is free."""
        self._shares[into] = share * self._shares[gone] + (1 - share) * self._shares[into]
        self._shares[gone] = 0
        self._compare(into)

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Leave these rows only, in this order; code that no burst is left of was not seen."""
        self.count = count = len(kept)
        self._alike[:count, :count] = self._alike[np.ix_(kept, kept)]
        used = np.flatnonzero(self._shares[kept, : self._columns].any(axis=0))
        fresh = np.full(self._columns + 1, -1, np.int64)
        fresh[used] = np.arange(len(used))
        self._column_of = fresh[self._column_of]  # the last one where it is -1
        shares = np.zeros_like(self._shares)
        shares[:count, : len(used)] = self._shares[np.ix_(kept, used)]
        self._shares, self._columns, self._roots = shares, len(used), None

    def _compare(self, row: int) -> None:
        """How alike this one and the others are now."""
        self._roots = None
        roots = self._square_roots()
        self._alike[row, : self.count] = self._alike[: self.count, row] = roots @ roots[row]

    def _square_roots(self) -> NDArray[np.float64]:
        """Square roots of :attr:`shares`, worked out once until they change."""
        if self._roots is None:
            self._roots = np.sqrt(self.shares)
        return self._roots
