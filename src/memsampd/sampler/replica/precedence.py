"""Whether a replica may be put where its target is held, and before others: else holds take longer.

The core does so for each hold (``_core/replica/burst_cpus.c``), as far as it may.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

import msgspec

from memsampd import _core
from memsampd.sampler.process.cgroup import CgroupLimits, read_limits

logger = logging.getLogger(__name__)

QUOTA_REMEDY = (
    "no CPU limit for memsampd, or real-time priority: CAP_SYS_NICE (and cpu.rt_runtime_us, where "
    "there is one in its control group)"
)
LONGEST_SECONDS = 1e-3 * _core.HURRIED_MILLISECONDS
"""Of holds that are given precedence."""
_RANK = 2  # of who ends a hold; a replica has the one below
_NICENESS = -15  # where real-time priority is refused


class Precedence(msgspec.Struct, frozen=True):
    """What a replica may, in holds of :data:`LONGEST_SECONDS` at most; each includes those before.

    Attributes:
        moves: be put on the target's CPU, however long the hold.
        is_nicer: have far more of it than other processes.
        is_real_time: go before all that are not of real time, whatever they and memsampd were
            allotted.
    """

    moves: bool = False
    is_nicer: bool = False
    is_real_time: bool = False


def try_precedence(replica: int) -> Precedence:
    """Try what a replica may, between two bursts; it is then as it was.

    Args:
        replica: its process id.
    """
    try:
        os.sched_setaffinity(replica, os.sched_getaffinity(replica))
    except OSError:
        return Precedence()
    with suppress(OSError):
        policy, rank = os.sched_getscheduler(replica), os.sched_getparam(replica)
        os.sched_setscheduler(replica, os.SCHED_FIFO, os.sched_param(_RANK))
        os.sched_setscheduler(replica, policy, rank)
        return Precedence(moves=True, is_nicer=True, is_real_time=True)
    with suppress(OSError):
        niceness = os.getpriority(os.PRIO_PROCESS, replica)
        os.setpriority(os.PRIO_PROCESS, replica, _NICENESS)
        os.setpriority(os.PRIO_PROCESS, replica, niceness)
        return Precedence(moves=True, is_nicer=True)
    return Precedence(moves=True)


def quota_words(limits: CgroupLimits) -> str:
    """What memsampd's control groups allow it; empty without a quota."""
    if limits.cpus is None:
        return ""
    return (
        f"memsampd has {limits.cpus:g} CPUs at most, granted every {1e3 * limits.period_seconds:g}"
        " ms"
    )


def warn_of_quota(replica: int, max_stop_seconds: float) -> None:
    """Log how a quota of our own may prolong holds, and what to do, if it may.

    Args:
        replica: process id of a replica of ours, between two bursts.
        max_stop_seconds: how long a target may be held.
    """
    words = quota_words(read_limits(os.getpid()))
    if not words:
        return
    if not try_precedence(replica).is_real_time:
        lacks, remedy = "no real-time priority", QUOTA_REMEDY
    elif max_stop_seconds > LONGEST_SECONDS:
        lacks = f"no real-time priority for holds of more than {_core.HURRIED_MILLISECONDS} ms"
        remedy = f"no CPU limit for memsampd, or --max-stop {LONGEST_SECONDS:g} at most"
    else:
        return
    logger.warning(
        "%s, and %s: a target that is held when they are used up waits for the next grant, "
        "whatever --max-stop says; %s",
        words,
        lacks,
        remedy,
    )
