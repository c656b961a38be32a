"""How the C library keeps memory: threads that come and go must not leave a pool each."""

from __future__ import annotations

import ctypes

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_ARENA_MAX = -8
_TRIM_BYTES = 256 * 1024


def keep_little() -> bool:
    """Have all threads share one pool, and what is free at its end given back.

    To be called before there are other threads. Most of what tracing threads allocate they allocate
    under Python's lock, so they do not wait for each other more than before.

    Returns:
        Whether the C library can (glibc).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_M_ARENA_MAX, 1) and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
