"""Why perf_event_open(2) said no, and what to do about it."""

from __future__ import annotations

import errno
from pathlib import Path

from memsampd.errors import CapabilityError, MemsampdError, TargetError
from memsampd.sampler.process.identity import PROC

NO_RING = "a ring buffer for samples cannot be mapped"
MORE_LOCKED_MEMORY = "raise kernel.perf_event_mlock_kb, or the limit of locked memory (ulimit -l)"

_BY_ERRNO = {
    errno.ENOENT: ("this machine has no such counter", "a virtual machine often has no PMU"),
    errno.ENODEV: ("this machine has no such counter", "a virtual machine often has no PMU"),
    errno.EOPNOTSUPP: ("the counter cannot be sampled so", "a less precise event may work"),
    errno.ENOSYS: (
        "perf_event_open is not there (a kernel without CONFIG_PERF_EVENTS, a sandbox or a "
        "seccomp filter)",
        "run memsampd outside of the sandbox, or allow the system call in its seccomp profile",
    ),
    errno.EPERM: (
        "perf_event_open is forbidden, mostly by the seccomp profile of a container",
        "start the container with --cap-add PERFMON (or SYS_ADMIN) or with a profile that "
        "allows perf_event_open",
    ),
    errno.ENOBUFS: (NO_RING, MORE_LOCKED_MEMORY),
    errno.EMFILE: ("too many open files", "raise the limit (ulimit -n)"),
    errno.ENFILE: ("too many open files on the whole machine", "raise fs.file-max"),
    errno.ENOMEM: ("the kernel is short of memory", "free some"),
    errno.EBUSY: ("another user has the counter", "end the other profiler"),
    errno.EINVAL: ("this kernel does not know such an event", "Linux 5.13 or later is needed"),
    errno.ENOSPC: ("all counters or breakpoints of this kind are in use", "end the other user"),
}


def read_paranoid(proc: Path = PROC) -> int | None:
    """kernel.perf_event_paranoid; None where it cannot be read."""
    try:
        return int((proc / "sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        return None


def explain_refusal(error: OSError, what: str, proc: Path = PROC) -> MemsampdError:
    """Turn an error of perf_event_open(2) into one that says what to do.

    Args:
        error: as raised by the native core.
        what: what was asked for, to begin the sentence with ("sampling process 7").
        proc: root of the proc file system.

    Returns:
        TargetError where the process is gone or not ours, CapabilityError otherwise.
    """
    if error.errno == errno.ESRCH:
        return TargetError(f"{what}: the process is gone")
    if error.errno == errno.EACCES:
        paranoid = read_paranoid(proc)
        if paranoid is not None and paranoid > 2:
            return CapabilityError(
                f"{what}: kernel.perf_event_paranoid is {paranoid}, which forbids perf events to "
                "ordinary users",
                "sysctl kernel.perf_event_paranoid=2, or run memsampd with CAP_PERFMON (sudo)",
            )
        return TargetError(
            f"{what}: the kernel does not let you observe this process",
            "run memsampd as its user, or with CAP_PERFMON and CAP_SYS_PTRACE (sudo)",
        )
    cause, remedy = _BY_ERRNO.get(
        error.errno or 0, (error.strerror or str(error), "memsampd doctor may tell more")
    )
    return CapabilityError(f"{what}: {cause}", remedy)
