"""Whom a shadow takes itself for: what the native core must know to emulate its system calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from memsampd import _core
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.status import ProcessStatus, read_status
from memsampd.sampler.shadow.snapshots import EmulationIdentity, Shadow


def parent_as_seen(status: ProcessStatus, parent: ProcessStatus) -> int:
    """A process's parent, numbered in the process's own PID namespace; 0 if it is not in it."""
    level = len(status.ns_pids) - 1
    return parent.ns_pids[level] if 0 <= level < len(parent.ns_pids) else 0


def emulation_of(shadow: Shadow, proc: Path = PROC) -> EmulationIdentity | None:
    """Describe the thread that a shadow is a copy of.

    Returns:
        An argument for the executors of the native core; None if the thread is gone: then no call
        can be emulated.
    """
    if shadow.identity is not None:
        return shadow.identity
    try:
        status = read_status(shadow.tid, proc)
    except OSError:
        return None
    if not status.ns_tgids or not status.ns_pids:
        return None
    try:
        parent = parent_as_seen(status, read_status(status.parent_pid, proc))
    except OSError:  # it has none that we can see
        parent = 0
    return (
        shadow.tid,
        status.ns_tgids[-1],
        status.ns_pids[-1],
        parent,
        shadow.signal_mask,
        shadow.pending,
        status.locked_bytes > 0,
        shadow.syscall_address,
        np.array(shadow.absent, np.uint64).tobytes(),
        shadow.files.for_core(),
    )


def syscall_detail(number: int) -> str:
    """A system call for people: its name, or its number where this build knows none."""
    return _core.syscall_name(number) or str(number)
