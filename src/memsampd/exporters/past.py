"""What a target did, as it outlives memsampd: rows of its history, and curves of its phases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from memsampd.models.records import MissRatioCurve

# Ids of phases in a history that are none of the session's: light ones together; no phase; below
# that phases of a session before, which this one does not know again.
OTHERS = -1
EMPTY = -2
POLICY = "lru"

_MEANING = 1
_MOST_BYTES = 4 << 20
_MOST_ROWS = 1 << 14
_MOST_PHASES = 4096
_MOST_SIZES = 4096
_MOST_SECONDS = 1e12
_MOST_CACHE_BYTES = 2.0**60
_RATES = (0.0, 1e13)


@dataclass(frozen=True, slots=True)
class PhaseKnowledge:
    """What is known of a phase.

    Attributes:
        curve: its miss ratios; None before its first burst.
        accesses_per_cpu_second: None if unknown.
    """

    curve: MissRatioCurve | None
    accesses_per_cpu_second: float | None


@dataclass(frozen=True, slots=True)
class PastRows:
    """Rows of equal length in time, oldest first.

    Attributes:
        step_seconds: length of a row.
        numbers: CLOCK_MONOTONIC start of each divided by the length, shape (r,), ascending.
        phases: ids of those that ran, EMPTY where there are fewer, shape (r, slots).
        cpu_seconds: CPU time of each, shape (r, slots).
        begins_late: there were older ones.
    """

    step_seconds: float
    numbers: NDArray[np.int64]
    phases: NDArray[np.int32]
    cpu_seconds: NDArray[np.float32]
    begins_late: bool


@dataclass(frozen=True, slots=True)
class Past:
    """What a target did, up to some moment.

    Attributes:
        until_seconds: that moment, CLOCK_MONOTONIC.
        tiers: rows of several lengths, the shortest first.
        known: what was known of phases then, by id.
    """

    until_seconds: float
    tiers: tuple[PastRows, ...]
    known: dict[int, PhaseKnowledge]

    @property
    def phases(self) -> list[int]:
        """Ids of its phases, ascending."""
        ran = {int(id) for rows in self.tiers for id in np.unique(rows.phases)}
        return sorted((ran | self.known.keys()) - {OTHERS, EMPTY})

    def fitting(self, sizes_bytes: NDArray[np.int64], line_bytes: int) -> Past:
        """Forget curves of other cache sizes or lines than these."""
        known = {
            id: each
            if each.curve is not None
            and each.curve.line_bytes == line_bytes
            and np.array_equal(each.curve.sizes_bytes, sizes_bytes)
            else PhaseKnowledge(None, each.accesses_per_cpu_second)
            for id, each in self.known.items()
        }
        return replace(self, known=known)

    def renamed(self, ids: dict[int, int]) -> Past:
        """Give phases other ids; one that is not named gets an id of a phase not known again."""
        strange = [id for id in self.phases if id not in ids]
        ids = {**ids, **{id: EMPTY - 1 - place for place, id in enumerate(strange)}}
        ids |= {OTHERS: OTHERS, EMPTY: EMPTY}
        tiers = tuple(
            replace(rows, phases=_mapped(rows.phases, ids.__getitem__)) for rows in self.tiers
        )
        return Past(self.until_seconds, tiers, {ids[id]: each for id, each in self.known.items()})


def _mapped(phases: NDArray[np.int32], name: Callable[[int], int]) -> NDArray[np.int32]:
    found, place = np.unique(phases, return_inverse=True)
    named = np.array([name(int(id)) for id in found], np.int32)
    return named[place].reshape(phases.shape)


class _Rows(msgspec.Struct, array_like=True):
    step_seconds: float
    slots: int
    numbers: bytes
    phases: bytes
    cpu_seconds: bytes
    begins_late: bool


class _Phase(msgspec.Struct, array_like=True):
    id: int
    accesses_per_cpu_second: float | None
    line_bytes: int
    curve: bytes  # sizes, miss ratios, low, high; empty: none is known


class _Past(msgspec.Struct, array_like=True):
    meaning: int
    until_seconds: float
    tiers: list[_Rows]
    known: list[_Phase]


def pack_past(past: Past) -> bytes:
    """Return it as bytes."""
    tiers = [
        _Rows(
            rows.step_seconds,
            rows.phases.shape[1],
            rows.numbers.astype("<i8").tobytes(),
            rows.phases.astype("<i4").tobytes(),
            rows.cpu_seconds.astype("<f4").tobytes(),
            rows.begins_late,
        )
        for rows in past.tiers
    ]
    known = [
        _Phase(id, each.accesses_per_cpu_second, *_packed_curve(each.curve))
        for id, each in past.known.items()
    ]
    payload = msgspec.msgpack.encode(_Past(_MEANING, past.until_seconds, tiers, known))
    return zstandard.compress(payload)


def unpack_past(frame: bytes, now_seconds: float) -> Past:
    """Undo :func:`pack_past`.

    Args:
        frame: what was kept.
        now_seconds: CLOCK_MONOTONIC: nothing of the past is later.

    Raises:
        ValueError: it is damaged, or says what cannot have been.
    """
    try:
        payload = zstandard.ZstdDecompressor().decompress(frame, max_output_size=_MOST_BYTES)
        if len(payload) > _MOST_BYTES:
            raise ValueError("a past that is too long")
        kept = msgspec.msgpack.decode(payload, type=_Past)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise ValueError(f"a past that cannot be read: {error}") from error
    if kept.meaning != _MEANING or not len(kept.known) <= _MOST_PHASES:
        raise ValueError("a past of another version")
    if not (math.isfinite(kept.until_seconds) and kept.until_seconds <= now_seconds):
        raise ValueError("a past that has not come yet")
    tiers = tuple(_checked_rows(each, kept.until_seconds) for each in kept.tiers)
    known = {each.id: _checked_phase(each) for each in kept.known}
    return Past(kept.until_seconds, tiers, known)


def _packed_curve(curve: MissRatioCurve | None) -> tuple[int, bytes]:
    if curve is None:
        return 0, b""
    columns = (curve.sizes_bytes, curve.miss_ratio, curve.low, curve.high)
    return curve.line_bytes, np.array(columns, "<f8").tobytes()


def _checked_rows(rows: _Rows, until_seconds: float) -> PastRows:
    numbers = np.frombuffer(rows.numbers, "<i8").astype(np.int64)
    if not (0 < rows.step_seconds <= 86_400 and 0 < rows.slots <= 64):
        raise ValueError("rows of a length that none has")
    if not len(numbers) <= _MOST_ROWS or np.any(np.diff(numbers) <= 0):
        raise ValueError("rows that are not in order")
    if len(numbers) and not 0 <= numbers[0] <= numbers[-1] * rows.step_seconds <= until_seconds:
        raise ValueError("rows that have not come yet")
    shape = len(numbers), rows.slots
    phases = np.frombuffer(rows.phases, "<i4").astype(np.int32).reshape(shape)
    cpu_seconds = np.frombuffer(rows.cpu_seconds, "<f4").astype(np.float32).reshape(shape)
    if not np.all((cpu_seconds >= 0) & (cpu_seconds <= _MOST_SECONDS)):
        raise ValueError("CPU time that none has")
    return PastRows(rows.step_seconds, numbers, phases, cpu_seconds, rows.begins_late)


def _checked_phase(phase: _Phase) -> PhaseKnowledge:
    rate = phase.accesses_per_cpu_second
    if rate is not None and not _RATES[0] <= rate <= _RATES[1]:
        raise ValueError("an access rate that none has")
    if not phase.curve:
        return PhaseKnowledge(None, rate)
    columns = np.frombuffer(phase.curve, "<f8").reshape(4, -1)
    sizes_bytes, ratios = columns[0], columns[1:]
    if not 0 < len(sizes_bytes) <= _MOST_SIZES or np.any(np.diff(sizes_bytes) <= 0):
        raise ValueError("sizes that are not in order")
    if not 0 < sizes_bytes[0] <= sizes_bytes[-1] < _MOST_CACHE_BYTES:
        raise ValueError("sizes that no cache has")
    if not np.all((ratios >= 0) & (ratios <= 1)):
        raise ValueError("a curve that is none")
    middle, low, high = ratios.copy()
    sizes = sizes_bytes.astype(np.int64)
    curve = MissRatioCurve(sizes, middle, low, high, POLICY, phase.line_bytes, 0)
    return PhaseKnowledge(curve, rate)
