"""From data references to accesses: the cache lines touched, in program order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import UsageError


def line_stream(
    address: NDArray[np.uint64], size_bytes: NDArray[np.uint16], line_bytes: int = 64
) -> NDArray[np.uint64]:
    """Return the number of every line that these references touch.

    A reference that crosses into other lines is one access to each, lowest first.

    Args:
        address: first byte referenced, shape (n,).
        size_bytes: bytes referenced, shape (n,); 0 counts as 1.
        line_bytes: size of a line, a power of two.

    Returns:
        Line numbers (address // line_bytes), shape (m,), uint64, m >= n.

    Raises:
        UsageError: ``line_bytes`` is not a power of two.
    """
    lines = _core.line_stream(
        np.ascontiguousarray(address, np.uint64),
        np.ascontiguousarray(size_bytes, np.uint16),
        _shift_of(line_bytes),
    )
    return np.frombuffer(lines, np.uint64)


def _shift_of(line_bytes: int) -> int:
    if line_bytes < 1 or line_bytes & (line_bytes - 1):
        raise UsageError(f"a line of {line_bytes} bytes", "use a power of two, such as 64")
    return line_bytes.bit_length() - 1
