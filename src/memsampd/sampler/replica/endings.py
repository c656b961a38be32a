"""What ended a burst, for people."""

from __future__ import annotations

import os
import signal

from memsampd import _core
from memsampd.sampler.records import BurstEnd
from memsampd.sampler.replica.decoder import CODE_BYTES_MAXIMUM, describe

_PAGE_BYTES = 4096


def read_code(memory: int, address: int, size_bytes: int = CODE_BYTES_MAXIMUM) -> bytes:
    """Code of a process: as much as is mapped, for it may end with its page.

    Args:
        memory: descriptor of its /proc/PID/mem.
        address: where it begins.
        size_bytes: how much is wanted.
    """
    for end in (address + size_bytes, (address & -_PAGE_BYTES) + _PAGE_BYTES):
        try:
            return os.pread(memory, end - address, address)
        except (OSError, OverflowError):
            continue
    return b""


def signal_name(number: int) -> str:
    """Name a signal, one of the real-time signals as well.

    >>> signal_name(11), signal_name(signal.SIGRTMIN + 3), signal_name(33)
    ('SIGSEGV', 'SIGRTMIN+3', 'signal 33')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        is_real_time = signal.SIGRTMIN < number < signal.SIGRTMAX
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if is_real_time else f"signal {number}"


def syscall_detail(number: int) -> str:
    """A system call for people: its name, or its number where this build knows none."""
    return _core.syscall_name(number) or str(number)


def end_detail(end: BurstEnd, ip: int, number: int, memory: int) -> str:
    """The signal, system call or instruction that ended it; empty where it just was long enough.

    Args:
        end: how it ended.
        ip: the instruction that comes next.
        number: of the signal or system call.
        memory: descriptor of the target's /proc/PID/mem.
    """
    if end in (BurstEnd.FAULT, BurstEnd.SIGNAL):
        return signal_name(number) if number else ""
    if end in (BurstEnd.SYSCALL, BurstEnd.ASLEEP, BurstEnd.DIFFERED):
        return syscall_detail(number)
    return describe(read_code(memory, ip), ip) if end is BurstEnd.UNSUPPORTED else ""
