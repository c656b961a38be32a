"""Records of perf events as linux/perf_event.h describes them, and perf.data files.

Written from the header's comments, not from the parser under test.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# enum perf_event_sample_format
IP, TID, TIME, ADDR, READ = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4
CALLCHAIN = 1 << 5
ID, CPU, PERIOD, STREAM_ID, RAW = 1 << 6, 1 << 7, 1 << 8, 1 << 9, 1 << 10
REGS_USER, STACK_USER, WEIGHT, DATA_SRC, IDENTIFIER = 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16
WEIGHT_STRUCT = 1 << 24
ALWAYS = IP | TID | TIME
OTHERS = (
    *(ADDR, READ, ID, CPU, PERIOD, STREAM_ID, RAW, REGS_USER, WEIGHT, DATA_SRC, IDENTIFIER),
    CALLCHAIN,
)

# enum perf_event_type
LOST, COMM, EXIT, THROTTLE, UNTHROTTLE, FORK, SAMPLE, LOST_SAMPLES = 2, 3, 4, 5, 6, 7, 9, 13
USER, KERNEL = 2, 1  # PERF_RECORD_MISC_CPUMODE
EXEC = 1 << 13

LOAD, STORE = 0x02, 0x04  # mem_op of a data source


@dataclass(frozen=True, slots=True)
class IbsOp:
    """Registers of AMD's IBS of operations, of a raw part."""

    op_data: int
    op_data3: int

    def raw(self) -> bytes:
        """Capabilities, then IbsOpCtl, Rip, Data, Data2, Data3, DcLinAd, DcPhysAd."""
        return struct.pack("<I7Q", 0x3FF, 11, 12, self.op_data, 14, self.op_data3, 16, 17)


@dataclass(frozen=True, slots=True)
class SampleFields:
    """What a sample has in it."""

    ip: int = 0x401000
    pid: int = 7
    tid: int = 8
    time_ns: int = 1_000
    event: int = 99
    address: int = 0
    enabled_ns: int = 0
    running_ns: int = 0
    counts: Sequence[int] = (1, 2, 3, 4, 5)
    raw: bytes = b"\1\2\3\4"
    registers: Sequence[int] | None = field(default_factory=lambda: tuple(range(16)))
    data_source: int = 0
    mode: int = USER
    stack: bytes = b""
    stack_known: int = 0
    chain: Sequence[int] = (0xFFFF_FFFF_FFFF_FF80, 0xFFFF_FFFF_8100_0001, 0xFFFF_FFFF_8100_0002)
    entered_ip: int = 0x402000

    @property
    def all_registers(self) -> Sequence[int] | None:
        """With the instruction that the kernel was entered from, which a chain comes with."""
        if self.registers is None:
            return None
        return (*self.registers[:8], self.entered_ip, *self.registers[8:])

    @property
    def padded_raw(self) -> bytes:
        """The raw part, which the kernel fills up to a whole number of words with its size."""
        return self.raw + bytes(-(len(self.raw) + 4) % 8)

    def record(self, sample_type: int) -> bytes:
        """As the kernel writes it."""
        body = b""
        words = (
            (IDENTIFIER, self.event),
            (IP, self.ip),
            (TID, self.pid | self.tid << 32),
            (TIME, self.time_ns),
            (ADDR, self.address),
            (ID, self.event),
            (STREAM_ID, 1234),
            (CPU, 1),
            (PERIOD, 4321),
        )
        for bit, word in words:
            body += struct.pack("<Q", word) if sample_type & bit else b""
        if sample_type & READ:
            times = (len(self.counts), self.enabled_ns, self.running_ns)
            body += struct.pack(f"<3Q{len(self.counts)}Q", *times, *self.counts)
        if sample_type & CALLCHAIN:
            body += struct.pack(f"<{1 + len(self.chain)}Q", len(self.chain), *self.chain)
        if sample_type & RAW:
            body += struct.pack("<I", len(self.padded_raw)) + self.padded_raw
        if sample_type & REGS_USER:
            registers = self.all_registers if sample_type & CALLCHAIN else self.registers
            body += struct.pack("<Q", 0 if registers is None else 2)
            body += struct.pack(f"<{len(registers or ())}Q", *(registers or ()))
        if sample_type & STACK_USER:
            body += struct.pack("<Q", len(self.stack)) + self.stack
            body += struct.pack("<Q", self.stack_known) if self.stack else b""
        if sample_type & (WEIGHT | WEIGHT_STRUCT):
            body += struct.pack("<Q", 77)
        if sample_type & DATA_SRC:
            body += struct.pack("<Q", self.data_source)
        return record(SAMPLE, body, self.mode)


def record(kind: int, body: bytes, misc: int = 0) -> bytes:
    """Any record."""
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


def identity(sample_type: int, time_ns: int, pid: int = 7, tid: int = 8) -> bytes:
    """What ends a record that is no sample (sample_id_all)."""
    words = (
        (TID, pid | tid << 32),
        (TIME, time_ns),
        (ID, 99),
        (STREAM_ID, 1234),
        (CPU, 1),
        (IDENTIFIER, 99),
    )
    return b"".join(struct.pack("<Q", word) for bit, word in words if sample_type & bit)


def named(sample_type: int, name: bytes, time_ns: int, is_exec: bool = False) -> bytes:
    """A thread's new name."""
    padded = name + bytes(8 - len(name) % 8)
    body = struct.pack("<II", 7, 8) + padded + identity(sample_type, time_ns)
    return record(COMM, body, EXEC if is_exec else 0)


def born(sample_type: int, time_ns: int, kind: int = FORK) -> bytes:
    """A thread's begin, or end."""
    body = struct.pack("<4IQ", 7, 6, 8, 5, time_ns)
    return record(kind, body + identity(sample_type, time_ns))


@dataclass(frozen=True, slots=True)
class DataFile:
    """A perf.data file of one kind of sample.

    Attributes:
        sample_type: fields of its samples.
        records: its data, as they came out of the rings.
    """

    sample_type: int
    records: bytes

    @classmethod
    def read(cls, path: Path) -> DataFile:
        """Read it; all its events must have the same fields."""
        data = path.read_bytes()
        assert data[:8] == b"PERFILE2"
        each, first, size, start, length = struct.unpack_from("<5Q", data, 16)
        types = {
            struct.unpack_from("<Q", data, at + 24)[0] for at in range(first, first + size, each)
        }
        (sample_type,) = types
        return cls(sample_type, data[start : start + length])

    def samples(self) -> bytes:
        """Only the records of samples."""
        return b"".join(self._samples())

    def _samples(self) -> Iterator[bytes]:
        at = 0
        while at < len(self.records):
            kind, _, size = struct.unpack_from("<IHH", self.records, at)
            if kind == SAMPLE:
                yield self.records[at : at + size]
            at += size
