"""The recording's file format, version 8 (docs/recording.md).

A file is a prelude, ``MEMSAMPD`` and the version as a little-endian u16, and then frames. A frame
is three little-endian u32, the payload's length, the CRC-32 of these four bytes and the CRC-32 of
the payload, and the payload: one record as MessagePack, compressed with zlib. The length has its
own check so that a damaged length is told from a file that just ends early.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, TypeAlias

import msgspec

from memsampd.estimate.events import EstimatorEvent, Event
from memsampd.exporters.snapshot import BurstTally, Overhead, TargetInfo

MAGIC = b"MEMSAMPD"
FORMAT_VERSION = 8
PRELUDE = struct.Struct("<8sH")
FRAME_HEADER = struct.Struct("<III")
_LEVEL = 1  # a fifth to two fifths of the time of the default level, a fifth more bytes
MAX_FRAME_BYTES = 64 << 20  # compressed or not; a record needs a few KiB


class HeaderRecord(Event, frozen=True, kw_only=True, tag="header"):
    """The first record: what was observed, where, with what.

    Attributes:
        memsampd_version: version that wrote the file.
        target: the process.
        backend: names of branch source, access source, clock, and of what measures long distances.
        line_bytes: size of a cache line.
        start_unix_seconds: wall-clock time of the attach.
        cache_sizes_bytes: this machine's data cache sizes by name ("L1d", "L2", "L3").
        machine: description of the machine, for people and scripts.
        config: the session's settings.
    """

    memsampd_version: str
    target: TargetInfo
    backend: dict[str, str]
    line_bytes: int
    start_unix_seconds: float
    cache_sizes_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    machine: dict[str, Any] = msgspec.field(default_factory=dict)
    config: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.line_bytes <= 1 << 20:
            raise ValueError("line_bytes out of range")


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


class StopRecord(Event, frozen=True, kw_only=True, tag="stop"):
    """The last record where the recording could not be gone on with, whatever the session did.

    Attributes:
        reason: why, for people.
    """

    reason: str


Record: TypeAlias = HeaderRecord | EstimatorEvent | SummaryRecord | StopRecord

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def prelude() -> bytes:
    """Return the first bytes of a recording."""
    return PRELUDE.pack(MAGIC, FORMAT_VERSION)


def encode_frame(record: Record) -> bytes:
    """Return a record as one frame."""
    payload = zlib.compress(_encoder.encode(record), _LEVEL)
    length = struct.pack("<I", len(payload))
    return FRAME_HEADER.pack(len(payload), zlib.crc32(length), zlib.crc32(payload)) + payload


def frame_length(header: bytes) -> tuple[int, int]:
    """Read a frame's header.

    Returns:
        Length of its payload in bytes, and the payload's CRC-32.

    Raises:
        ValueError: the header is damaged.
    """
    length, length_check, payload_check = FRAME_HEADER.unpack(header)
    if zlib.crc32(header[:4]) != length_check or length > MAX_FRAME_BYTES:
        raise ValueError("damaged length")
    return length, payload_check


def decode_payload(payload: bytes, check: int) -> Record:
    """Read a frame's payload.

    Raises:
        ValueError: it is damaged or no record of this version (msgspec's errors are ValueErrors).
    """
    if zlib.crc32(payload) != check:
        raise ValueError("wrong checksum")
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(payload, MAX_FRAME_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof:
        raise ValueError("wrong length once decompressed")
    return _decoder.decode(plain)
