"""The trace's file format, version 1 (docs/trace.md).

A file is a prelude, ``MEMSAMPT`` and the version as a little-endian u16, and then frames: a header,
for each burst its start, blocks of accesses and its finish, and a footer. A frame's header has its
kind, its number in the file, two lengths and two checksums, so that a damaged, lost or swapped
frame is told from a file that just ends early; its payload is one MessagePack map, compressed with
zstandard.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import msgspec
import zstandard

from memsampd.exporters.snapshot import TargetInfo
from memsampd.exporters.trace.columns import AccessBlock
from memsampd.sampler.records import BurstCost

MAGIC = b"MEMSAMPT"
FORMAT_VERSION = 1
PRELUDE = struct.Struct("<8sH")
# Kind, number, bytes stored, bytes decompressed, CRC-32 of the payload, CRC-32 of the above.
FRAME_HEADER = struct.Struct("<cxxxIIIII")
MAX_PLAIN_BYTES = 64 << 20  # a block of the most rows needs 30 MiB
_CHECK_BYTES = 4
_LEVEL = 3  # higher ones take several times as long for a few percent


class FrameKind(Enum):
    """What a frame holds."""

    HEADER = b"H"
    START = b"S"
    ACCESSES = b"A"
    FINISH = b"F"
    FOOTER = b"Z"


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records: unknown keys are ignored, missing optional ones get their default."""


class TraceHeader(_Record, frozen=True, kw_only=True):
    """What was traced, where, with what.

    Attributes:
        memsampd_version: version that wrote the file.
        target: the process.
        source: name of the access source, or of the format that the trace was imported from.
        line_bytes: size of a cache line.
        start_unix_seconds: wall-clock time of the attach; 0 if unknown.
        command: the program and its arguments, if memsampd started it.
        machine: description of the machine, for people and scripts.
        config: the settings.
    """

    memsampd_version: str
    target: TargetInfo
    source: str
    line_bytes: int = 64
    start_unix_seconds: float = 0.0
    command: list[str] = []
    machine: dict[str, Any] = {}
    config: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not 0 < self.line_bytes <= 1 << 20 or self.line_bytes & (self.line_bytes - 1):
            raise ValueError("line_bytes out of range")


class BurstStart(_Record, frozen=True, kw_only=True):
    """What is known when a burst begins.

    Attributes:
        tid: the thread.
        time_seconds: when it was chosen, seconds since the attach.
        cpu_seconds: CPU time that it had used by then; None if unknown.
        max_accesses: rows that were asked for; None if there was no limit.
    """

    tid: int
    time_seconds: float
    cpu_seconds: float | None = None
    max_accesses: int | None = None


class BurstFinish(_Record, frozen=True, kw_only=True):
    """What is known when a burst has ended.

    Attributes:
        end: why: a value of :class:`~memsampd.sampler.records.BurstEnd`.
        end_detail: the system call, instruction or signal that ended it, for people.
        rows: references, each at an address and of a size; the burst's accesses to lines are as
            many or, where references cross lines, more.
        instructions: instructions executed, those without references included.
        prefetches: software prefetches met (not among the rows).
        stopped_seconds: the moment that it shows: when the thread was first held, seconds since the
            attach; None if unknown.
        cost: what it cost.
        calls: system calls that it goes over.
        is_plausible: other threads could run meanwhile: perhaps not the future that came.
    """

    end: str
    rows: int
    end_detail: str = ""
    instructions: int = 0
    prefetches: int = 0
    stopped_seconds: float | None = None
    cost: BurstCost = BurstCost()
    calls: int = 0
    is_plausible: bool = False


class TraceFooter(_Record, frozen=True, kw_only=True):
    """The last record: it is missing if memsampd was killed.

    Attributes:
        bursts: bursts in the file.
        rows: rows of all of them.
        exit_reason: why the trace ended, for people.
        refusals: bursts that could not be had, by reason.
    """

    bursts: int
    rows: int
    exit_reason: str = ""
    refusals: dict[str, int] = {}


Record: TypeAlias = TraceHeader | BurstStart | AccessBlock | BurstFinish | TraceFooter

_TYPES: dict[FrameKind, type[Record]] = {
    FrameKind.HEADER: TraceHeader,
    FrameKind.START: BurstStart,
    FrameKind.ACCESSES: AccessBlock,
    FrameKind.FINISH: BurstFinish,
    FrameKind.FOOTER: TraceFooter,
}
_KINDS = {kind_type: kind for kind, kind_type in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What stands before a payload.

    Attributes:
        kind: what it holds.
        number: 0, 1, 2, ... in the file.
        stored_bytes: length of the payload.
        plain_bytes: length of it, decompressed.
        payload_check: its CRC-32.
    """

    kind: FrameKind
    number: int
    stored_bytes: int
    plain_bytes: int
    payload_check: int


def prelude() -> bytes:
    """Return the first bytes of a trace."""
    return PRELUDE.pack(MAGIC, FORMAT_VERSION)


class FrameEncoder:
    """Makes frames, numbering them; not for several threads at once."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._number = 0

    def encode(self, record: Record) -> bytes:
        """Return a record as the next frame."""
        plain = msgspec.msgpack.encode(record)
        payload = self._compressor.compress(plain)
        kind = _KINDS[type(record)].value
        number, self._number = self._number, self._number + 1
        lengths = len(payload), len(plain), zlib.crc32(payload)
        header = FRAME_HEADER.pack(kind, number, *lengths, 0)[:-_CHECK_BYTES]
        return header + zlib.crc32(header).to_bytes(_CHECK_BYTES, "little") + payload


def decode_header(raw: bytes) -> FrameHeader:
    """Read a frame's header.

    Raises:
        ValueError: it is damaged.
    """
    kind, number, stored, plain, payload_check, check = FRAME_HEADER.unpack(raw)
    if zlib.crc32(raw[:-_CHECK_BYTES]) != check:
        raise ValueError("damaged frame header")
    if max(stored, plain) > MAX_PLAIN_BYTES:
        raise ValueError("a frame of more than 64 MiB")
    return FrameHeader(FrameKind(kind), number, stored, plain, payload_check)


class FrameDecoder:
    """Reads payloads; not for several threads at once."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor()

    def decode(self, header: FrameHeader, payload: bytes) -> Record:
        """Read a frame's payload.

        Raises:
            ValueError: it is damaged or no record of this version (msgspec's errors are
                ValueErrors).
        """
        if zlib.crc32(payload) != header.payload_check:
            raise ValueError("wrong checksum")
        try:
            if zstandard.frame_content_size(payload) != header.plain_bytes:
                raise ValueError("wrong length once decompressed")
            plain = self._decompressor.decompress(payload)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        return msgspec.msgpack.decode(plain, type=_TYPES[header.kind])
