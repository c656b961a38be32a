"""Inputs for the parsers of perf records: seeds, small changes of them, and what must hold of each.

``tests/fuzz/fuzz_perf_records.py`` makes millions of them, the ordinary tests some thousands.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
import perf_reader
import perf_records as abi
from perf_records import SampleFields

from memsampd import _core
from memsampd.sampler.perf.rings import SAMPLE_DTYPE
from memsampd.sampler.walk.thread_samples import first_sample

COMBINATIONS = [
    abi.ALWAYS | sum(chosen)
    for chosen in chain.from_iterable(
        combinations(abi.OTHERS, count) for count in range(len(abi.OTHERS) + 1)
    )
]
"""All that samples may have in them."""

# What an input's first bits ask for; the last three are fields that cannot be read.
_BRANCH_STACK, _OF_LATER_KERNELS = 1 << 11, 1 << 40
_BITS = (
    *abi.OTHERS,
    abi.WEIGHT_STRUCT,
    _BRANCH_STACK,
    abi.STACK_USER,
    _OF_LATER_KERNELS,
)
_HEAD = struct.Struct("<HHQ")
_THREAD_TYPE = abi.ALWAYS | abi.IDENTIFIER | abi.REGS_USER | abi.STACK_USER
_ABI_AT, _STACK_AT = 32, 40 + 16 * 8  # in the body of such a sample


@dataclass(frozen=True, slots=True)
class PerfInput:
    """A ring, and what is to be read of it.

    Attributes:
        sample_type: fields of its samples.
        ring: its bytes.
        tail: where reading begins, below 2**63: positions count on, for ever.
        missing: bytes of the ring, at most all, that the kernel has not written.
    """

    sample_type: int
    ring: bytes
    tail: int = 0
    missing: int = 0

    @classmethod
    def decode(cls, data: bytes) -> PerfInput:
        """Of any bytes."""
        fields, missing, tail = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
        ring = data[_HEAD.size :]
        asked = sum(bit for at, bit in enumerate(_BITS) if fields >> at & 1)
        return cls(abi.ALWAYS | asked, ring, tail % 2**63, min(missing, len(ring)))

    def encode(self) -> bytes:
        """As ``decode`` reads it."""
        fields = sum(1 << at for at, bit in enumerate(_BITS) if self.sample_type & bit)
        return _HEAD.pack(fields, self.missing, self.tail) + self.ring

    @property
    def head(self) -> int:
        """Where reading ends."""
        return self.tail + len(self.ring) - self.missing

    @property
    def flat(self) -> bytes:
        """What is read, in one piece."""
        start = self.tail % len(self.ring) if self.ring else 0
        return (self.ring[start:] + self.ring[:start])[: len(self.ring) - self.missing]


def check(data: bytes) -> None:
    """Hold the parsers to what they promise, whatever the bytes.

    Raises:
        AssertionError: one of them does not tell what is there.
    """
    given = PerfInput.decode(data)
    _check_parse_records(given)
    _check_first_sample(given.flat)


def _check_parse_records(given: PerfInput) -> None:
    arguments = (given.ring, given.sample_type, given.tail, given.head)
    try:
        samples, events, lost, throttled = _core.parse_records(*arguments)
    except ValueError:
        assert given.sample_type & ~perf_reader.READABLE, "fields were refused that can be read"
        return
    assert not given.sample_type & ~perf_reader.READABLE, "fields were taken that cannot be read"
    told = perf_reader.read(given.flat, given.sample_type)
    assert (lost, throttled) == (told.lost, told.throttled)
    assert list(events) == told.events
    assert bytes(samples) == bytes(told.samples)


def _check_first_sample(data: bytes) -> None:
    """The parser in Python is compared with the one in C, given that record alone."""
    found = first_sample(data)
    bodies = (body for kind, _, body in perf_reader.records(data) if kind == abi.SAMPLE)
    body = next(bodies, b"")
    is_whole = len(body) >= _STACK_AT and body[_ABI_AT : _ABI_AT + 8] == struct.pack("<Q", 2)
    assert (found is not None) is is_whole
    if found is None:
        return
    record = abi.record(abi.SAMPLE, body[:_STACK_AT], abi.USER)
    samples, _, lost, _ = _core.parse_records(record, _THREAD_TYPE & ~abi.STACK_USER)
    assert lost == 0
    (row,) = np.frombuffer(samples, SAMPLE_DTYPE)
    assert (found.tid, found.ip, found.registers) == (
        row["tid"],
        row["ip"],
        tuple(row["registers"].tolist()),
    )
    assert found.time_seconds == int(row["time_ns"]) * 1e-9
    size = int.from_bytes(body[_STACK_AT : _STACK_AT + 8], "little")
    stack, known = body[_STACK_AT + 8 :][:size], body[_STACK_AT + 8 + size :][:8]
    is_told = size > 0 and len(known) == 8
    assert found.stack == (stack[: int.from_bytes(known, "little")] if is_told else b"")


def seeds() -> list[bytes]:
    """Inputs as the kernel might write them, and some that it should not."""
    return [each.encode() for each in _seeds()]


def _seeds() -> Iterator[PerfInput]:
    op = abi.IbsOp(1 << 37, 1 << 17 | 1).raw()
    full = SampleFields(address=0x7FFF1234, enabled_ns=50, running_ns=40, data_source=abi.STORE)
    for kind in COMBINATIONS:
        yield PerfInput(kind, full.record(kind))
    everything = COMBINATIONS[-1]
    for kind in (abi.ALWAYS, abi.ALWAYS | abi.IDENTIFIER | abi.CPU, everything):
        yield PerfInput(kind, b"".join(_others(kind)))
        yield PerfInput(kind, full.record(kind) + b"".join(_others(kind)) + full.record(kind))
    for odd in (
        SampleFields(raw=op),
        SampleFields(registers=None),
        SampleFields(counts=()),
        SampleFields(counts=range(6)),
        SampleFields(mode=abi.KERNEL),
        SampleFields(raw=bytes(1100)),
    ):
        chainless = everything ^ abi.CALLCHAIN
        for kind in (everything, chainless, chainless ^ abi.WEIGHT | abi.WEIGHT_STRUCT):
            ring = odd.record(kind) + full.record(kind)
            yield PerfInput(kind, ring)
            for tail in (8, len(ring) - 8, 7 * len(ring) + 4, 2**62):
                start = tail % len(ring)
                yield PerfInput(kind, ring[-start:] + ring[:-start], tail)
            yield PerfInput(kind, ring, missing=len(ring) // 3)
    for odd in (SampleFields(chain=()), SampleFields(chain=range(150))):
        yield PerfInput(everything, odd.record(everything) + full.record(everything))
    for stack, known in ((b"", 0), (bytes(range(64)), 64), (bytes(64), 8), (bytes(8), 2**63)):
        sample = SampleFields(stack=stack, stack_known=known).record(_THREAD_TYPE)
        for ring in (sample, abi.born(_THREAD_TYPE, 5) + sample, sample[:-9]):
            yield PerfInput(_THREAD_TYPE & ~abi.STACK_USER, ring)
    for bit in (_BRANCH_STACK, abi.STACK_USER, _OF_LATER_KERNELS):
        yield PerfInput(abi.ALWAYS | bit, full.record(abi.ALWAYS))


def _others(kind: int) -> tuple[bytes, ...]:
    """Records that are no samples."""
    identity = abi.identity(kind, 13)
    return (
        abi.born(kind, 10),
        abi.named(kind, b"a name", 11),
        abi.named(kind, b"\xff prog", 12, is_exec=True),
        abi.record(abi.LOST, struct.pack("<QQ", 99, 5) + identity),
        abi.record(abi.LOST_SAMPLES, struct.pack("<Q", 7) + identity),
        abi.record(abi.THROTTLE, struct.pack("<QQQ", 15, 99, 1234) + identity),
        abi.record(abi.UNTHROTTLE, struct.pack("<QQQ", 16, 99, 1234) + identity),
        abi.record(4711, b"of a later kernel"),
        abi.born(kind, 17, abi.EXIT),
    )


def changed(rng: random.Random, of: Sequence[bytes]) -> bytes:
    """One of these inputs with some bytes changed, put in, taken out, or taken from another."""
    data = bytearray(rng.choice(of))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        other = rng.choice(of)
        start = rng.randrange(len(other))
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                data[at:at] = rng.randbytes(rng.randint(1, 16))
            case 2:
                del data[at : at + rng.randint(1, 16)]
            case 3:
                data[at:] = other[start:]
            case 4:
                word = rng.choice((0, 1, 8, 2**16 - 1, 2**31, 2**63, 2**64 - 1))
                data[at : at + 8] = word.to_bytes(8, "little")
    return bytes(data)
