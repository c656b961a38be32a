"""The state of a process and its threads, from /proc/PID/status and /proc/PID/task."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from memsampd.sampler.process.identity import PROC, read_stat, valid_text
from memsampd.sampler.process.schedstat import read_scheduled


class ProcessStatus(msgspec.Struct, frozen=True):
    """The fields of a status file that matter for attaching (proc_pid_status(5)).

    A field that this kernel does not show is 0.

    Attributes:
        tgid: process that the thread belongs to.
        tracer_pid: id of the thread that traces it; 0 if none does.
        uid: effective user id.
        seccomp_mode: 0 none, 1 strict, 2 filter.
        huge_bytes: memory in pages of hugetlbfs, which resident memory does not hold.
        cap_effective: effective capabilities, a bit each.
    """

    tgid: int
    tracer_pid: int
    uid: int
    seccomp_mode: int
    huge_bytes: int
    cap_effective: int


def parse_status(text: str) -> ProcessStatus:
    """Parse a status file."""
    fields = {}
    for line in text.split("\n"):  # names may hold what else counts as the end of a line
        name, _, value = line.partition(":")
        fields[name] = value.split()

    def number(name: str, index: int = 0, base: int = 10) -> int:
        values = fields.get(name, [])
        return int(values[index], base) if len(values) > index else 0

    return ProcessStatus(
        tgid=number("Tgid"),
        tracer_pid=number("TracerPid"),
        uid=number("Uid", 1),
        seccomp_mode=number("Seccomp"),
        huge_bytes=number("HugetlbPages") * 1024,
        cap_effective=number("CapEff", base=16),
    )


def read_status(pid: int, proc: Path = PROC) -> ProcessStatus:
    """Read the status of a process.

    Raises:
        OSError: FileNotFoundError or ProcessLookupError where there is no such process.
    """
    return parse_status(valid_text((proc / str(pid) / "status").read_bytes()))


def list_threads(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """Thread ids of a process, ascending; empty if it is gone."""
    try:
        names = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names))


class ThreadState(msgspec.Struct, frozen=True):
    """What one thread is doing.

    Attributes:
        tid: thread id.
        state: letter of its state: "R" runs or is ready to, "S" sleeps, ...
        cpu_ns: CPU time it has used, nanoseconds.
    """

    tid: int
    state: str
    cpu_ns: int


def read_threads(pid: int, proc: Path = PROC) -> tuple[ThreadState, ...]:
    """States of all threads of a process; those that exit meanwhile are left out."""
    found = []
    for tid in list_threads(pid, proc):
        folder = proc / str(pid) / "task"
        try:
            stat = read_stat(tid, folder)
        except OSError:
            continue
        scheduled = read_scheduled(tid, folder)
        if scheduled is not None:
            found.append(ThreadState(tid, stat.state, scheduled.ran_ns))
    return tuple(found)


def count_sleeps(pid: int) -> int:
    """How often the threads that a process has now went to sleep so far."""
    mark, total = b"\nvoluntary_ctxt_switches:", 0
    for tid in list_threads(pid):
        try:
            text = (PROC / str(pid) / "task" / str(tid) / "status").read_bytes()
        except OSError:
            continue
        rest = text.partition(mark)[2].split(None, 1)
        total += int(rest[0]) if rest else 0
    return total
