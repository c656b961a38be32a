"""Bursts whose rows nobody looks at."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from memsampd.sampler.records import Burst, BurstEnd

_NONE = np.empty(0, np.uint64)
_ROWLESS = Burst(
    ip=_NONE,
    address=_NONE,
    size_bytes=_NONE.astype(np.uint16),
    is_write=_NONE.astype(np.bool_),
    pid=1,
    tid=1,
    time_seconds=0.0,
    instructions=0,
    prefetches=0,
    end=BurstEnd.FULL,
)


def rowless_burst(**changes: Any) -> Burst:
    """A full burst of thread 1, without rows, but for what is given."""
    return msgspec.structs.replace(_ROWLESS, **changes)
