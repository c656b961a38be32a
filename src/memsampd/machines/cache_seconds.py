"""How long an access to the last-level cache takes on this machine."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping

from memsampd import _core

_LEVELS = ("L2", "L3")
_AREA_CACHES = 4  # as large as so many L2: three of four loads miss it
_LOADS, _ROUNDS = 5_000, 3  # what others do makes a round longer, never shorter
_PASSES = 2  # lines that were just written are not all in L3 yet


def measure_cache_seconds(cache_sizes_bytes: Mapping[str, int]) -> dict[str, float]:
    """Measure what an access to the last-level cache takes if the next one waits for it.

    Loads go at random through memory that is too large for L2 (four times that, or halfway to a
    small L3), in pages of 4 KiB as most programs' is: a fourth of them still hits L2. It differs by
    a factor of four from host to host, and nothing tells it. Takes some 5 ms.

    Args:
        cache_sizes_bytes: this machine's data caches by name.

    Returns:
        Seconds by name: of "L3"; empty where no size of L2 or of L3 is known.
    """
    sizes = [cache_sizes_bytes.get(level, 0) for level in _LEVELS]
    if not all(sizes) or sizes[0] >= sizes[1]:
        return {}
    area_bytes = int(min(_AREA_CACHES * sizes[0], math.sqrt(math.prod(sizes))))
    with mmap.mmap(-1, area_bytes) as area:
        _core.memory_pass("w", area)
        return {"L3": min(_round(area, seed) for seed in range(_ROUNDS))}


def _round(area: mmap.mmap, seed: int) -> float:
    for _ in range(_PASSES):
        _core.memory_pass("r", area)
    return _core.memory_chase(area, _LOADS, seed)
