"""The records of a trace, and how they are frames (docs/trace.md).

A header, for each burst its start, blocks of accesses and its finish, and a footer. A payload is
one record as MessagePack, compressed with zstandard.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import zstandard

from memsampd.exporters.files import TRACE
from memsampd.exporters.frames import MAX_FRAME_BYTES, FrameFormat
from memsampd.exporters.snapshot import TargetInfo
from memsampd.exporters.trace.columns import AccessBlock
from memsampd.sampler.records import BurstCost

FORMAT = FrameFormat(
    kind=TRACE, magic=b"MEMSAMPT", version=2, numbered=True, source="'memsampd trace'"
)
LEVEL = 3  # of compression: higher ones take several times as long for a few percent


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    """Base of all records: unknown keys are ignored, missing optional ones get their default."""


class TraceHeader(_Record, frozen=True, kw_only=True, tag="header"):
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


class BurstStart(_Record, frozen=True, kw_only=True, tag="start"):
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


class BurstFinish(_Record, frozen=True, kw_only=True, tag="finish"):
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


class TraceFooter(_Record, frozen=True, kw_only=True, tag="footer"):
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

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record, compressor: zstandard.ZstdCompressor) -> bytes:
    """Return a record as the payload of a frame."""
    return compressor.compress(_encoder.encode(record))


def decode(payload: bytes, decompressor: zstandard.ZstdDecompressor) -> Record:
    """Read the payload of a frame.

    Raises:
        ValueError: it is no record of this version (msgspec's errors are ValueErrors).
    """
    try:
        if not 0 <= zstandard.frame_content_size(payload) <= MAX_FRAME_BYTES:
            raise ValueError("more than 64 MiB once decompressed")
        plain = decompressor.decompress(payload)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return _decoder.decode(plain)
