"""The latest rows of something that goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Latest:
    """Keeps so many rows at most, and does not copy all of them for each new one.

    Args:
        most: rows kept.
        dtype: of their values.
        width: values in a row; None: a row is one value.

    Examples:
        >>> kept = Latest(3, np.int64)
        >>> for rows in ([1, 2], [3], [4, 5]):
        ...     kept.add(np.array(rows))
        >>> kept.rows.tolist()
        [3, 4, 5]
    """

    def __init__(self, most: int, dtype: Any, width: int | None = None) -> None:
        self._most = most
        self._rows = np.empty(2 * most if width is None else (2 * most, width), dtype)
        self._end = 0

    @property
    def rows(self) -> NDArray[Any]:
        """Those that are kept, oldest first: a view, until others are added."""
        return self._rows[max(self._end - self._most, 0) : self._end]

    def add(self, rows: NDArray[Any]) -> None:
        """Add rows at the end."""
        rows = rows[-self._most :]
        if self._end + len(rows) > len(self._rows):
            kept = self.rows.copy()
            self._rows[: len(kept)] = kept
            self._end = len(kept)
        self._rows[self._end : self._end + len(rows)] = rows
        self._end += len(rows)
