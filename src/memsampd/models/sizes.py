"""Cache sizes as every model takes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd.errors import UsageError


def size_in_lines(sizes_bytes: NDArray[np.int64], line_bytes: int) -> NDArray[np.int64]:
    """Return how many lines fit into caches of these sizes.

    Args:
        sizes_bytes: shape (s,), ascending.
        line_bytes: size of a line.

    Returns:
        Whole lines, shape (s,), int64.

    Raises:
        UsageError: a size below one line, or sizes that do not ascend.
    """
    sizes_bytes = np.asarray(sizes_bytes, dtype=np.int64)
    if line_bytes < 1 or np.any(sizes_bytes < line_bytes):
        raise UsageError(
            f"a cache smaller than its line of {line_bytes} bytes", "ask for larger sizes"
        )
    if np.any(np.diff(sizes_bytes) <= 0):
        raise UsageError("cache sizes that do not ascend", "sort them, each once")
    return np.asarray(sizes_bytes // line_bytes, dtype=np.int64)
