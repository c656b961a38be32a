"""Whether accesses can be had without a stop on this machine."""

from __future__ import annotations

import random
from contextlib import closing

from memsampd.errors import CaptureError, MemsampdError
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.walk.source import WalkSource

_ACCESSES = 200
_TRIES = 5


def probe(pid: int) -> tuple[bool, str]:
    """Walk beside a busy child.

    Args:
        pid: the child.

    Returns:
        Whether it works, and what was found.
    """
    problem = "the child was never found at work"
    with closing(WalkSource(pid, random.Random(0))) as source:
        for _ in range(_TRIES):
            try:
                burst = source.capture(BurstRequest(pid, _ACCESSES))
            except CaptureError as error:
                problem = str(error)
                continue
            except MemsampdError as error:
                return False, str(error)
            if len(burst):
                return True, f"{len(burst)} accesses of a child were followed, and nothing stopped"
            problem = f"no access before the walk ended ({burst.end})"
    return False, problem
