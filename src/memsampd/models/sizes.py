"""Cache sizes: as every model takes them, and as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from memsampd.errors import UsageError

MAX_SIZE_BYTES = 1 << 40
MAX_SIZES = 4096
_FIRST_OCTAVE, _USUAL_OCTAVES = 10, 26
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_SIZE = re.compile(r"(\d{1,15})\s*(?:([KMG])(?:i?B)?|B)?", re.IGNORECASE | re.ASCII)


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
    if line_bytes < 1 or (sizes_bytes < line_bytes).any():
        raise UsageError(
            f"a cache smaller than its line of {line_bytes} bytes", "ask for larger sizes"
        )
    if (sizes_bytes[1:] <= sizes_bytes[:-1]).any():
        raise UsageError("cache sizes that do not ascend", "sort them, each once")
    return np.asarray(sizes_bytes // line_bytes, dtype=np.int64)


def default_sizes(
    steps_per_octave: int = 1, cache_sizes_bytes: Iterable[int] = ()
) -> NDArray[np.int64]:
    """Return 1 KiB to 64 MiB, or more, in equal logarithmic steps, int64.

    Args:
        steps_per_octave: so many sizes between a power of two and the next one.
        cache_sizes_bytes: of a machine's caches: the last size is above all of them, so that a
            curve also tells what more of a cache would do.
    """
    octaves = max([_USUAL_OCTAVES, *(size.bit_length() for size in cache_sizes_bytes)])
    steps = (octaves - _FIRST_OCTAVE) * steps_per_octave
    return np.round(2.0 ** np.linspace(_FIRST_OCTAVE, octaves, steps + 1)).astype(np.int64)


def with_caches(
    sizes_bytes: NDArray[np.int64], cache_sizes_bytes: Iterable[int]
) -> NDArray[np.int64]:
    """Return sizes and those of a machine's caches from 1 KiB on, ascending, int64.

    Between two sizes a curve is but a straight line, and so would its bounds be.
    """
    caches = {size for size in cache_sizes_bytes if size >= 1 << _FIRST_OCTAVE}
    # np.union1d would load masked arrays: a twelfth of what the start takes.
    return np.array(sorted(caches.union(sizes_bytes.tolist())), np.int64)


def parse_size(text: str) -> int:
    """Read a size: plain bytes or with K, M, G (binary; "32K", "32KB", "32KiB" are the same).

    Raises:
        UsageError: it is none, or out of range.
    """
    match = _SIZE.fullmatch(text.strip())
    size_bytes = int(match[1]) << _UNITS[(match[2] or "").upper()] if match else 0
    if not 0 < size_bytes <= MAX_SIZE_BYTES:
        raise UsageError(f"{text!r} is no cache size", "give sizes such as 32KiB, 1MiB or 65536")
    return size_bytes


def parse_sizes(text: str) -> NDArray[np.int64]:
    """Read a comma-separated list of sizes; returns them ascending, each once, int64.

    Raises:
        UsageError: one of them is none, or there are too many.
    """
    sizes = sorted({parse_size(part) for part in text.split(",")})
    if len(sizes) > MAX_SIZES:
        raise UsageError(f"{len(sizes)} cache sizes are too many", f"give at most {MAX_SIZES}")
    return np.array(sizes, dtype=np.int64)


def format_size(size_bytes: int) -> str:
    """Return a size for people, such as "32 KiB"."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
