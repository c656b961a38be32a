"""Holding the threads of a process that a burst does not hold: what then follows is sure."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from memsampd.sampler.process.status import read_threads

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WAIT_ALL = 0x40000000
_EVENT_STOP = 128
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


@contextmanager
def others_held(pid: int, tid: int, asleep: bool = False) -> Iterator[int]:
    """Hold all threads of a process that run, except one, until the end.

    Args:
        pid: the process.
        tid: the thread that is left alone.
        asleep: hold those that sleep as well, whom a timer may wake: nothing else then writes the
            memory of the process, but a call that they sleep in may be broken off (EINTR).

    Yields:
        How many are held.
    """
    held: dict[int, int] = {}  # signal to deliver, by thread
    try:
        for _ in range(2):  # one that was held may have woken another before
            for thread in read_threads(pid):
                if thread.tid not in (tid, *held) and (asleep or thread.state == "R"):
                    with suppress(OSError):
                        held[thread.tid] = _hold(thread.tid)
        yield len(held)
    finally:
        for each, number in held.items():
            with suppress(OSError):
                _trace(_DETACH, each, number)


def _hold(tid: int) -> int:
    """Stop a thread; returns the signal that it is to be given when it goes on."""
    _trace(_SEIZE, tid)
    _trace(_INTERRUPT, tid)
    _, status = os.waitpid(tid, _WAIT_ALL)
    if not os.WIFSTOPPED(status):
        raise ProcessLookupError(f"thread {tid} has ended")
    is_ours = status >> 16 == _EVENT_STOP or os.WSTOPSIG(status) == signal.SIGTRAP
    return 0 if is_ours else os.WSTOPSIG(status)


def _trace(request: int, tid: int, data: int = 0) -> None:
    if _libc.ptrace(request, tid, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
