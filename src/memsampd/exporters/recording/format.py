"""The records of a recording, and how they are frames (docs/recording.md).

A payload is one record as MessagePack, compressed with zlib.
"""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

import msgspec

from memsampd.errors import RecordingError
from memsampd.estimate.events import EstimatorEvent, Event
from memsampd.exporters.files import FileKind
from memsampd.exporters.frames import MAX_FRAME_BYTES, FrameFormat
from memsampd.exporters.snapshot import AddressTally, BurstTally, Overhead, TargetInfo

FORMAT = FrameFormat(
    kind=FileKind("recording", RecordingError),
    magic=b"MEMSAMPD",
    version=9,
    numbered=False,
    source="'memsampd attach' or 'memsampd run'",
)
_LEVEL = 1  # a fifth to two fifths of the time of the default level, a fifth more bytes


class HeaderRecord(Event, frozen=True, kw_only=True, tag="header"):
    """The first record: what was observed, where, with what.

    Attributes:
        memsampd_version: version that wrote the file.
        target: the process.
        backend: names of branch source, access source, clock, and of what measures long distances.
        line_bytes: size of a cache line.
        start_unix_seconds: wall-clock time of the attach.
        cache_sizes_bytes: this machine's data cache sizes by name ("L1d", "L2", "L3").
        cache_seconds: what an access takes that hits one of them ("L3"), if the next one waits for
            it; empty where that was not measured.
        machine: description of the machine, for people and scripts.
        config: the session's settings.
    """

    memsampd_version: str
    target: TargetInfo
    backend: dict[str, str]
    line_bytes: int
    start_unix_seconds: float
    cache_sizes_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    cache_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    machine: dict[str, Any] = msgspec.field(default_factory=dict)
    config: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.line_bytes <= 1 << 20:
            raise ValueError("line_bytes out of range")
        if not all(0 < seconds < 1 for seconds in self.cache_seconds.values()):
            raise ValueError("cache_seconds out of range")


class SummaryRecord(Event, frozen=True, kw_only=True, tag="summary"):
    """The last record: how it all went. It is missing when memsampd was killed.

    Attributes:
        alive: the target still ran when memsampd let go of it.
        exit_reason: why the session ended, for people.
        overhead: what it cost.
        tally: what became of all bursts together.
        windows: windows seen.
        samples: branch samples.
        lost: branch samples lost.
        throttled: throttle events.
        burst_ends: bursts by reason of their end.
        errors: refused or failed captures by reason.
        prediction_accuracy: share of predictions that came true; None before the first.
        addresses: what became of accesses that a PMU sampled; all 0 where none did.
        child_share: for this share of the CPU time in its windows child processes ran, 0..1.
    """

    alive: bool
    exit_reason: str
    overhead: Overhead
    tally: BurstTally
    windows: int
    samples: int
    lost: int
    throttled: int
    burst_ends: dict[str, int]
    errors: dict[str, int]
    prediction_accuracy: float | None
    addresses: AddressTally = AddressTally()
    child_share: float = 0.0


class StopRecord(Event, frozen=True, kw_only=True, tag="stop"):
    """The last record where the recording could not be gone on with, or observing broke off.

    Attributes:
        reason: why, for people.
        observing_ended: nothing was observed later.
    """

    reason: str
    observing_ended: bool = False


Record: TypeAlias = HeaderRecord | EstimatorEvent | SummaryRecord | StopRecord

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """Return a record as the payload of a frame."""
    return zlib.compress(_encoder.encode(record), _LEVEL)


def decode(payload: bytes) -> Record:
    """Read the payload of a frame.

    Raises:
        ValueError: it is no record of this version (msgspec's errors are ValueErrors).
    """
    return _decoder.decode(inflate(payload, MAX_FRAME_BYTES))


def inflate(payload: bytes, most_bytes: int) -> bytes:
    """Decompress what zlib has made of some bytes.

    Raises:
        ValueError: it is none of that, or more than ``most_bytes``.
    """
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(payload, most_bytes)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof:
        raise ValueError("wrong length once decompressed")
    return plain
