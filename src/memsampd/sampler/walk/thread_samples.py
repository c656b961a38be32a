"""Single samples of a running thread: where it is, with its registers and its stack."""

from __future__ import annotations

import mmap
import random
import select
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.perf.sleepers import one_shot_timer, start_timer

_PERIOD_NS = (100_000, 400_000)  # of CPU time: drawn anew each time
_LOOK_SECONDS = 0.02
_RING_BYTES = 16 << 10  # a sample, and some records of births and ends
_HEAD_OFFSET = 1024  # of data_head in struct perf_event_mmap_page
_HEADER = struct.Struct("IHH")  # struct perf_event_header
# A sample as its fields are asked for: identifier, ip, pid, tid, time; then the registers' ABI.
_SAMPLE = struct.Struct("QQIIQQ")
_REGISTERS = struct.Struct("16Q")
_WORD = struct.Struct("Q")
_PERF_RECORD_SAMPLE = 9
_REGISTERS_OF_64_BITS = 2  # PERF_SAMPLE_REGS_ABI_64


@dataclass(frozen=True, slots=True)
class ThreadSample:
    """Where a thread was.

    Attributes:
        tid: the thread.
        ip: the instruction that comes next.
        registers: its general registers, in the order of samples.
        time_seconds: CLOCK_MONOTONIC.
        stack: what was on its stack, from the stack pointer upwards; less, or nothing, where the
            kernel could not read it.
    """

    tid: int
    ip: int
    registers: tuple[int, ...]
    time_seconds: float
    stack: bytes = b""


class ThreadSampler:
    """Samples a thread once, at a random moment of its CPU time: by one shot of its task clock.

    Args:
        rng: draws how much later.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def next(self, tid: int, patience_seconds: float) -> ThreadSample | None:
        """Interrupt the thread once, when it has used up to 0.4 ms of CPU time.

        Args:
            tid: the thread.
            patience_seconds: how long to wait.

        Returns:
            None where that does not come in time: the thread sleeps.

        Raises:
            CaptureError: the thread is gone.
            CapabilityError: perf events are refused; with the cause and what to do.
        """
        with ExitStack() as stack:
            try:
                period_ns = self._rng.randint(*_PERIOD_NS)
                fields = _core.SAMPLE_REGISTERS | _core.SAMPLE_STACK
                fd = one_shot_timer(tid, period_ns, stack, fields)
                ring = stack.enter_context(mmap.mmap(fd, mmap.PAGESIZE + _RING_BYTES))
                start_timer(fd)
            except ProcessLookupError as error:
                raise CaptureError("gone", f"thread {tid} is gone") from error
            except OSError as error:
                raise explain_refusal(error, f"a timer of thread {tid}") from error
            return _wait(fd, ring, time.monotonic() + patience_seconds)


def _wait(fd: int, ring: mmap.mmap, deadline_seconds: float) -> ThreadSample | None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while (left_seconds := deadline_seconds - time.monotonic()) > 0:
        events = poll.poll(1e3 * min(left_seconds, _LOOK_SECONDS))
        (head,) = _WORD.unpack_from(ring, _HEAD_OFFSET)
        sample = first_sample(ring[mmap.PAGESIZE : mmap.PAGESIZE + min(head, _RING_BYTES)])
        if sample is not None:
            return sample
        if any(mask & (select.POLLHUP | select.POLLERR) for _, mask in events):
            return None
    return None


def first_sample(records: bytes) -> ThreadSample | None:
    """Find the first sample of 64-bit code in records of perf events; None if there is none whole.

    Args:
        records: as the kernel wrote them, from the first on.
    """
    at = 0
    while at + _HEADER.size <= len(records):
        kind, _, size = _HEADER.unpack_from(records, at)
        record = records[at + _HEADER.size : at + size]
        if size < _HEADER.size or at + size > len(records):
            return None
        if kind == _PERF_RECORD_SAMPLE:
            return _sample(record)
        at += size
    return None


def _sample(record: bytes) -> ThreadSample | None:
    if len(record) < _SAMPLE.size + _REGISTERS.size:
        return None
    _, ip, _, tid, time_ns, abi = _SAMPLE.unpack_from(record)
    if abi != _REGISTERS_OF_64_BITS:
        return None
    registers = _REGISTERS.unpack_from(record, _SAMPLE.size)
    rest = record[_SAMPLE.size + _REGISTERS.size :]
    return ThreadSample(tid, ip, registers, time_ns * 1e-9, _stack(rest))


def _stack(rest: bytes) -> bytes:
    """The stack: a size, so many bytes, and how many of these the kernel could read."""
    if len(rest) < _WORD.size:
        return b""
    (size,) = _WORD.unpack_from(rest)
    if not size or len(rest) < 2 * _WORD.size + size:
        return b""
    (known,) = _WORD.unpack_from(rest, _WORD.size + size)
    return rest[_WORD.size : _WORD.size + min(known, size)]
