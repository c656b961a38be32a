"""Whether a process can be observed at all, and if not, what to do about it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from memsampd.errors import TargetError, UsageError
from memsampd.sampler.process.identity import (
    PROC,
    ProcessIdentity,
    ProcessStat,
    read_identity,
    read_stat,
    wait_until_made,
)
from memsampd.sampler.process.status import (
    ProcessStatus,
    list_threads,
    read_status,
)

# ELF header (elf(5)): e_ident[EI_CLASS], and e_machine of what bursts can be taken from.
_ELF_CLASS_32 = 1
_ELF_MACHINE = {"x86_64": 62}
_PID_MAX = 1 << 22  # the kernel's own limit (PID_MAX_LIMIT)


class TargetFacts(msgspec.Struct, frozen=True):
    """A process that can be observed.

    Attributes:
        identity: who it is.
        status: its state.
        notes: what the user should know, a sentence each.
        refusal: why it may not be traced, nor its memory be read; None if it may.
    """

    identity: ProcessIdentity
    status: ProcessStatus
    notes: tuple[str, ...]
    refusal: TargetError | None = None


def parse_pid(text: str) -> int:
    """Read a process id from the command line.

    Raises:
        UsageError: it is no positive decimal number.
        TargetError: no process can have it.
    """
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise UsageError(
            f"'{text}' is no process id", "give a positive number, as ps or pgrep print it"
        )
    if int(text) > _PID_MAX:
        raise _missing(text)
    return int(text)


def check_target(
    pid: int | str,
    proc: Path = PROC,
    machine: str | None = None,
    own_pid: int | None = None,
    *,
    may_be_sealed: bool = False,
    patience_seconds: float = 60.0,
) -> TargetFacts:
    """Check that a process can be observed by this user on this machine.

    Nothing is done to it: the permission to trace is asked for by opening its memory file. One that
    is in the midst of an exec is waited for, and one that the observer holds itself is as good.

    Args:
        pid: the process.
        proc: root of the proc file system.
        machine: architecture as uname(2) says; the running one by default.
        own_pid: the process that will observe; this one by default.
        may_be_sealed: a process of one's own that may not be traced will do, too.
        patience_seconds: how long to wait for an exec: its file may come from a slow disk.

    Raises:
        TargetError: it cannot be observed.
        UsageError: ``pid`` is a string and no process id.
    """
    number = parse_pid(pid) if isinstance(pid, str) else pid
    machine = machine or os.uname().machine
    own_pid = own_pid or os.getpid()
    is_made = wait_until_made(number, patience_seconds, proc)
    try:
        status = read_status(number, proc)
        _check_identity(number, status, own_pid, proc)
        stat = read_stat(number, proc)
        _check_life(number, stat, status, own_pid, proc)
        if not is_made:
            raise TargetError(f"{_name(number, proc)} is in the midst of an exec", "try again")
        refusal = _permission_refusal(number, status, proc)
        if refusal is not None and (not may_be_sealed or status.uid != os.geteuid()):
            raise refusal
        _check_program(number, machine, proc)
        identity = read_identity(number, proc)
        if identity.start_ticks != stat.start_ticks:
            raise ProcessLookupError
    except (FileNotFoundError, ProcessLookupError) as error:
        raise _missing(number) from error
    except OSError as error:
        cause = f"process {number} cannot be looked at: {error.strerror}"
        raise TargetError(cause, "try again, and see the log") from error
    return TargetFacts(identity, status, _notes(stat), refusal)


def _missing(pid: int | str) -> TargetError:
    return TargetError(f"there is no process {pid}", "look it up with ps or pgrep")


def _name(pid: int, proc: Path) -> str:
    try:
        return f"process {pid} ({read_stat(pid, proc).command})"
    except OSError:
        return f"process {pid}"


def _check_identity(pid: int, status: ProcessStatus, own_pid: int, proc: Path) -> None:
    if own_pid in (pid, status.tgid):
        raise TargetError(
            f"process {pid} is memsampd itself", "a process cannot trace itself: choose another"
        )
    if status.tgid != pid:
        raise TargetError(f"{pid} is a thread of {_name(status.tgid, proc)}", f"use {status.tgid}")
    try:
        own_tracer = read_status(own_pid, proc).tracer_pid
    except OSError:
        own_tracer = 0
    if _process_of(own_tracer, proc) == pid:
        raise TargetError(
            f"{_name(pid, proc)} traces memsampd: stopping it would stop both",
            "run memsampd outside of that debugger",
        )


def _check_life(
    pid: int, stat: ProcessStat, status: ProcessStatus, own_pid: int, proc: Path
) -> None:
    if stat.is_kernel_thread:
        raise TargetError(
            f"{_name(pid, proc)} is a kernel thread: it has no user code",
            "choose a user process",
        )
    if stat.is_dead and len(list_threads(pid, proc)) > 1:
        raise TargetError(
            f"the main thread of {_name(pid, proc)} has exited, others run on",
            "such a process is not supported",
        )
    if stat.is_dead:
        raise TargetError(
            f"{_name(pid, proc)} is a zombie: it has exited and its parent "
            f"({stat.parent_pid}) has not collected it",
            "choose a live process",
        )
    # A thread of ours may hold it for a burst. It ends then: who has ended traces nothing any more.
    if _process_of(status.tracer_pid, proc) not in (None, own_pid):
        raise TargetError(
            f"{_name(pid, proc)} is traced by {_name(status.tracer_pid, proc)} already",
            "detach or end that tracer first",
        )


def _process_of(tracer: int, proc: Path) -> int | None:
    """The process of a tracer, of which the kernel tells the thread; None: there is none."""
    try:
        return read_status(tracer, proc).tgid
    except OSError:
        return None


def _permission_refusal(pid: int, status: ProcessStatus, proc: Path) -> TargetError | None:
    """Opening mem asks the kernel what attaching would (PTRACE_MODE_ATTACH, Yama included)."""
    try:
        os.close(os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        mine = os.geteuid()
        if status.uid != mine:
            return TargetError(
                f"{_name(pid, proc)} belongs to user {status.uid}, you are {mine}",
                "run memsampd as that user or with CAP_SYS_PTRACE (sudo)",
            )
        return TargetError(
            f"the kernel refuses to let you trace {_name(pid, proc)}, though it is yours",
            _refusal_remedy(proc),
        )
    return None


def _refusal_remedy(proc: Path) -> str:
    try:
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3 (no tracing until the next boot): boot with less"
    if scope:
        return (
            f"kernel.yama.ptrace_scope is {scope}: set it to 0 with sysctl, or run memsampd with "
            "CAP_SYS_PTRACE (sudo)"
        )
    return "it has set itself undumpable or has more privileges: CAP_SYS_PTRACE is needed (sudo)"


def _check_program(pid: int, machine: str, proc: Path) -> None:
    if machine not in _ELF_MACHINE:
        raise TargetError(
            f"{machine} is not supported as an architecture", "use an x86-64 Linux machine"
        )
    try:
        with open(proc / str(pid) / "exe", "rb") as file:
            header = file.read(20)
    except PermissionError:
        return  # an executable that may be run but not read
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return
    if header[4] == _ELF_CLASS_32:
        raise TargetError(
            f"{_name(pid, proc)} is a 32-bit program", "only 64-bit programs are supported"
        )
    if int.from_bytes(header[18:20], "little") != _ELF_MACHINE[machine]:
        raise TargetError(
            f"{_name(pid, proc)} is a program for another architecture than {machine}",
            "choose a native program",
        )


def _notes(stat: ProcessStat) -> tuple[str, ...]:
    if stat.state == "T":
        return ("it is stopped (SIGSTOP): nothing can be sampled until it is continued",)
    return ()
