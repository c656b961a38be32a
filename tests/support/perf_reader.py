"""What records of perf events say, read field by field: what the parser in C is compared with.

Written from the comments in linux/perf_event.h. Slow, and sure never to read beyond a record.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import perf_records as abi

READABLE = abi.ALWAYS | sum(abi.OTHERS) | abi.WEIGHT_STRUCT
MOST_BYTES = 1024  # of a record that are looked at: far more than any that is asked for has
_HYPERVISOR, _GUEST_KERNEL, _GUEST_USER, _MODES = 3, 4, 5, 7
_MOST_COUNTS, _REGISTERS, _IBS_BYTES = 5, 16, 4 + 5 * 8
_BEFORE_IP = 8  # registers
_FUNCTION_AT = 24  # in the raw part of a timer that has expired
_REGISTERS_OF_64_BITS = 2
_ROW = struct.Struct("<QQII5Q5Q3Q16Q")  # SAMPLE_DTYPE


class _ShortError(Exception):
    """A record ends before its fields do."""


@dataclass
class Found:
    """What there was, as ``parse_records`` tells it."""

    samples: bytearray = field(default_factory=bytearray)
    events: list[tuple[object, ...]] = field(default_factory=list)
    lost: int = 0
    throttled: int = 0


class _Body:
    """A record behind its header, from which fields are taken one after the other."""

    def __init__(self, content: bytes) -> None:
        self.rest = content

    def bytes(self, count: int) -> bytes:
        if count > len(self.rest):
            raise _ShortError
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def words(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}Q", self.bytes(8 * count))

    def word(self) -> int:
        return self.words(1)[0]


def records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Kind, flags and body of each record that is whole."""
    at = 0
    while at + 8 <= len(data):
        kind, misc, size = struct.unpack_from("<IHH", data, at)
        if size < 8 or at + size > len(data):
            return
        yield kind, misc, data[at + 8 : at + size]
        at += size


def read(data: bytes, sample_type: int) -> Found:
    """Read records that lie one behind the other."""
    found = Found()
    used = 0
    for kind, misc, body in records(data):
        used += 8 + len(body)
        try:
            _take(found, kind, misc, _Body(body[: MOST_BYTES - 8]), sample_type)
        except _ShortError:
            found.lost += 1
    found.lost = (found.lost + (used != len(data))) % 2**64
    return found


def _take(found: Found, kind: int, misc: int, body: _Body, sample_type: int) -> None:
    match kind:
        case abi.SAMPLE:
            row = _sample(body, sample_type)
            has_chain = sample_type & abi.CALLCHAIN
            if has_chain or misc & _MODES not in (
                abi.KERNEL,
                _HYPERVISOR,
                _GUEST_KERNEL,
                _GUEST_USER,
            ):
                found.samples += row
        case abi.LOST:
            found.lost += body.words(2)[1]
        case abi.LOST_SAMPLES:
            found.lost += body.word()
        case abi.THROTTLE:
            found.throttled += 1
        case abi.FORK | abi.EXIT:
            pid, parent, tid, parent_tid, time_ns = struct.unpack("<4IQ", body.bytes(24))
            name = "fork" if kind == abi.FORK else "exit"
            found.events.append((name, pid, tid, parent, parent_tid, time_ns, ""))
        case abi.COMM:
            pid, tid = struct.unpack("<II", body.bytes(8))
            behind = (abi.TIME, abi.ID, abi.STREAM_ID, abi.CPU, abi.IDENTIFIER)
            name_bytes = len(body.rest) - 8 * sum(bool(sample_type & bit) for bit in behind)
            if name_bytes < 0:
                raise _ShortError
            command = os.fsdecode(body.bytes(name_bytes).split(b"\0")[0])
            is_exec = "exec" if misc & abi.EXEC else "rename"
            found.events.append((is_exec, pid, tid, 0, 0, body.word(), command))


def _sample(body: _Body, sample_type: int) -> bytes:
    def word(bit: int) -> int:
        return body.word() if sample_type & bit else 0

    event, ip, thread, time_ns = (word(bit) for bit in (abi.IDENTIFIER, *_BITS))
    address = word(abi.ADDR)
    for bit in (abi.ID, abi.STREAM_ID, abi.CPU, abi.PERIOD):
        word(bit)
    enabled_ns, running_ns, *counts = _counts(body) if sample_type & abi.READ else [0] * 7
    ibs, source, frames = (0, 0), 0, 0
    if sample_type & abi.CALLCHAIN:
        frames = body.word()
        address = (body.words(frames) or (address,))[-1]
        source = _function(body) if sample_type & abi.RAW else 0
    elif sample_type & abi.RAW:
        ibs = _ibs(body)
    registers: Sequence[int] = [0] * _REGISTERS
    if sample_type & abi.REGS_USER:
        registers, entered_ip = _registers(body, has_ip=bool(sample_type & abi.CALLCHAIN))
        ip = ip if entered_ip is None else entered_ip
    word(abi.WEIGHT | abi.WEIGHT_STRUCT)
    source = word(abi.DATA_SRC) if sample_type & abi.DATA_SRC else source
    pid, tid = thread % 2**32, thread >> 32
    times = (enabled_ns, running_ns)
    return _ROW.pack(
        time_ns, ip, pid, tid, event, address, source, *times, *counts, *ibs, frames, *registers
    )


_BITS = (abi.IP, abi.TID, abi.TIME)


def _counts(body: _Body) -> list[int]:
    members, *times = body.words(3)
    if members > _MOST_COUNTS:
        raise _ShortError
    return [*times, *body.words(members), *[0] * (_MOST_COUNTS - members)]


def _ibs(body: _Body) -> tuple[int, int]:
    (size,) = struct.unpack("<I", body.bytes(4))
    raw = body.bytes(size)
    if size < _IBS_BYTES:
        return 0, 0
    words = struct.unpack_from("<5Q", raw, 4)
    return words[2], words[4]


def _function(body: _Body) -> int:
    (size,) = struct.unpack("<I", body.bytes(4))
    raw = body.bytes(size)
    if size < _FUNCTION_AT + 8:
        return 0
    (function,) = struct.unpack_from("<Q", raw, _FUNCTION_AT)
    return int(function)


def _registers(body: _Body, *, has_ip: bool) -> tuple[Sequence[int], int | None]:
    """The registers, and the instruction among them if there is one."""
    width = body.word()
    if not width:
        return [0] * _REGISTERS, None
    found, ip = body.words(_REGISTERS + has_ip), None
    if has_ip:
        ip = found[_BEFORE_IP]
        found = (*found[:_BEFORE_IP], *found[_BEFORE_IP + 1 :])
    return (found if width == _REGISTERS_OF_64_BITS else [0] * _REGISTERS), ip
