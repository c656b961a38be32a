"""The recording's file format, version 2 (docs/recording.md).

A file is a prelude, ``MEMSAMPD`` and the version as a little-endian u16, and then frames. A frame
is three little-endian u32, the payload's length, the CRC-32 of these four bytes and the CRC-32 of
the payload, and the payload: one record as MessagePack, compressed with zlib. The length has its
own check so that a damaged length is told from a file that just ends early.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, ClassVar, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.exporters.snapshot import BurstTally, Overhead, TargetInfo
from memsampd.models.histogram import ReuseHistogram
from memsampd.sampler.records import AccessRate, Burst, BurstCost, BurstEnd, TimedStretch

MAGIC = b"MEMSAMPD"
FORMAT_VERSION = 2
PRELUDE = struct.Struct("<8sH")
FRAME_HEADER = struct.Struct("<III")
_LEVEL = 1  # a fifth to two fifths of the time of the default level, a fifth more bytes
_HITS = "<u2"
_MOST_HITS = (1 << 16) - 1
MAX_FRAME_BYTES = 64 << 20  # compressed or not; a record needs a few KiB


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    """Base of all records: unknown keys are ignored, missing optional ones get their default."""


class HeaderRecord(_Record, frozen=True, kw_only=True, tag="header"):
    """The first record: what was observed, where, with what.

    Attributes:
        memsampd_version: version that wrote the file.
        target: the process.
        backend: names of branch source, access source and clock.
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
    cache_sizes_bytes: dict[str, int] = {}
    machine: dict[str, Any] = {}
    config: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not 0 < self.line_bytes <= 1 << 20:
            raise ValueError("line_bytes out of range")


def code_bytes(hits: NDArray[np.float64]) -> bytes:
    """Return a branch vector, shape (bins,), as records keep it."""
    return np.clip(hits, 0, _MOST_HITS).astype(_HITS).tobytes()


def code_vector(code: bytes) -> NDArray[np.float64]:
    """Undo :func:`code_bytes`; shape (0,) if nothing was kept.

    Raises:
        ValueError: it is cut off.
    """
    return np.frombuffer(code, _HITS).astype(np.float64)


class WindowRecord(_Record, frozen=True, kw_only=True, tag="window"):
    """One window.

    Attributes:
        index: 0, 1, 2, ...
        start_seconds: its first sample, seconds since the attach.
        end_seconds: its last sample, seconds since the attach.
        cpu_seconds: CPU time that it covers.
        phase: the phase it was put into (ids that were merged later: see MergeRecord).
        accesses: accesses made in it, if a clock knew at that time.
        samples: branch samples in it.
        lost: branch samples lost in it.
        throttled: throttle events in it.
        predicted_phase: the phase that was expected.
        code: its branch vector, hits a bin, uint16 little-endian; empty if it was not kept.
    """

    index: int
    start_seconds: float
    end_seconds: float
    cpu_seconds: float
    phase: int
    accesses: float | None = None
    samples: int = 0
    lost: int = 0
    throttled: int = 0
    predicted_phase: int | None = None
    code: bytes = b""

    def __post_init__(self) -> None:
        code_vector(self.code)


class BurstRecord(_Record, frozen=True, kw_only=True, tag="burst"):
    """One burst, as its reuse histogram; make it with :meth:`of`.

    Attributes:
        window: index of the window that it was taken in.
        phase: that window's phase.
        tid: thread that was observed.
        time_seconds: when, seconds since the attach.
        accesses: accesses to lines.
        writes: rows of the burst that were stores.
        rows: rows of the burst.
        instructions: instructions executed.
        prefetches: software prefetches met.
        end: why it ended.
        end_detail: what ended it, for people.
        cost: what it cost.
        bins: indices of the non-empty bins, int32 little-endian.
        reuses: their reuses, int64 little-endian.
        censored: their censored accesses, int64 little-endian.
        timed: what was timed of it in the target; None if nothing was.
        calls: system calls that it goes over.
        calls_compared: at so many of these the target was compared with its replica.
        calls_equal: at so many they were equal.
        pages_predicted: pages that were supplied before it touched them.
        pages_missed: pages that were supplied when it touched them.
        is_plausible: other threads could run meanwhile: perhaps not the future that came.
        analysed_seconds: when its window was known and it counted, seconds since the attach; None
            if nobody said.
        code: branch vector of what it executed, as of a window; empty if that is not known.
    """

    window: int
    phase: int
    tid: int
    time_seconds: float
    accesses: int
    writes: int
    rows: int
    instructions: int
    prefetches: int
    end: BurstEnd
    end_detail: str
    cost: BurstCost
    bins: bytes
    reuses: bytes
    censored: bytes
    timed: TimedStretch | None = None
    calls: int = 0
    calls_compared: int = 0
    calls_equal: int = 0
    pages_predicted: int = 0
    pages_missed: int = 0
    is_plausible: bool = False
    analysed_seconds: float | None = None
    code: bytes = b""

    def __post_init__(self) -> None:
        code_vector(self.code)

    _BIN: ClassVar[str] = "<i4"
    _COUNT: ClassVar[str] = "<i8"

    @classmethod
    def of(
        cls,
        burst: Burst,
        histogram: ReuseHistogram,
        *,
        window: int,
        phase: int,
        time_seconds: float,
        writes: int,
        analysed_seconds: float | None = None,
        code: bytes = b"",
    ) -> BurstRecord:
        """Record what of a burst is kept.

        Args:
            burst: the burst.
            histogram: reuse histogram of its lines.
            window: index of its window.
            phase: phase of that window.
            time_seconds: when it was taken, seconds since the attach.
            writes: stores among its rows.
            analysed_seconds: when it counted, seconds since the attach.
            code: its branch vector, see :func:`code_bytes`.
        """
        bins, reuses, censored = histogram.to_sparse()
        return cls(
            window=window,
            phase=phase,
            tid=burst.tid,
            time_seconds=time_seconds,
            accesses=histogram.accesses,
            writes=writes,
            rows=burst.accesses,
            instructions=burst.instructions,
            prefetches=burst.prefetches,
            end=burst.end,
            end_detail=burst.end_detail,
            cost=burst.cost,
            bins=bins.astype(cls._BIN).tobytes(),
            reuses=reuses.astype(cls._COUNT).tobytes(),
            censored=censored.astype(cls._COUNT).tobytes(),
            timed=burst.timed,
            calls=burst.calls,
            calls_compared=burst.calls_compared,
            calls_equal=burst.calls_equal,
            pages_predicted=burst.pages_predicted,
            pages_missed=burst.pages_missed,
            is_plausible=burst.is_plausible,
            analysed_seconds=analysed_seconds,
            code=code,
        )

    def histogram(self) -> ReuseHistogram:
        """Return the burst's reuse histogram.

        Raises:
            ValueError: the arrays do not fit together.
        """
        bins = np.frombuffer(self.bins, self._BIN).astype(np.int32)
        reuses, censored = (
            np.frombuffer(raw, self._COUNT).astype(np.int64) for raw in (self.reuses, self.censored)
        )
        _check_sparse(bins, reuses, censored)
        return ReuseHistogram.from_sparse(bins, reuses, censored)


class MergeRecord(_Record, frozen=True, kw_only=True, tag="merge"):
    """Phase ``gone`` turned out to be phase ``into``: read the one for the other everywhere."""

    gone: int
    into: int


class RateRecord(_Record, frozen=True, kw_only=True, tag="rate"):
    """What is now known of a phase's access rate; a later one replaces it."""

    phase: int
    rate: AccessRate


class SummaryRecord(_Record, frozen=True, kw_only=True, tag="summary"):
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


Record: TypeAlias = (
    HeaderRecord | WindowRecord | BurstRecord | MergeRecord | RateRecord | SummaryRecord
)

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


def _check_sparse(
    bins: NDArray[np.int32], reuses: NDArray[np.int64], censored: NDArray[np.int64]
) -> None:
    if not len(bins) == len(reuses) == len(censored):
        raise ValueError("arrays of different lengths")
    if np.any(bins < 0) or np.any(np.diff(bins) <= 0):
        raise ValueError("bins are not ascending")
    if np.any(reuses < 0) or np.any(censored < 0):
        raise ValueError("negative counts")
