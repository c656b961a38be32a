"""What is kept of a program, as rows of the store: made, and checked when it is read.

All of it came from programs that may be hostile, and from a file: every field is checked.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from memsampd.estimate.events import BurstRecord, code_vector
from memsampd.exporters.frames import frame, payload_of
from memsampd.exporters.recording.format import decode, encode, inflate
from memsampd.phases.records import Leader
from memsampd.sampler.records import BurstCost

# What is kept of a program at most.
MOST_PHASES = 64
PHASE_BURSTS = 12
PROFILE_BURSTS = 24

_MOST_FRAME_BYTES = 1 << 20
_MOST_COUNT = 1 << 40
_MOST_HITS = 1e9
_RATES = (1e3, 1e12)  # accesses per CPU second
_HITS = "<f8"
_LEVEL = 1  # of thousands of bins nearly all are 0


@dataclass(frozen=True, slots=True)
class StoredBurst:
    """A burst as it is kept.

    Attributes:
        phase: its phase.
        taken_unix_seconds: when it was taken, wall-clock time.
        accesses: in it.
        frame: the burst, see :func:`pack_burst`.
        code: which code it ran: a bit for each bin of its branch vector, see :func:`code_set`.
        is_old: it is from before the attach; clocks cannot tell, they go back at times.
    """

    phase: int
    taken_unix_seconds: float
    accesses: int
    frame: bytes
    code: int = 0
    is_old: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a program.

    Attributes:
        leaders: its phases.
        bursts: their bursts, oldest first.
        process: the only process that it means anything for; empty if that is any.
        cpu: the processor that it ran on: access rates are that one's.
        saved_unix_seconds: when it was written; with the program, it names this writing.
    """

    leaders: tuple[Leader, ...]
    bursts: tuple[StoredBurst, ...]
    process: str = ""
    cpu: str = ""
    saved_unix_seconds: float = field(default=0.0, compare=False)


def pack_burst(record: BurstRecord) -> bytes:
    """Return of a burst what tells of its program; a part of one is kept, or not, by itself."""
    kept = msgspec.structs.replace(
        record,
        window=0,
        tid=0,
        time_seconds=0.0,
        end_detail="",
        cost=BurstCost(),
        timed_code=-1,
        analysed_seconds=None,
        is_stored=True,
        part=0,
    )
    return frame(encode(kept))


def unpack_burst(kept: bytes, bins: int, *, is_same_cpu: bool) -> BurstRecord:
    """Undo :func:`pack_burst`.

    Args:
        kept: the frame.
        bins: length of branch vectors of bursts.
        is_same_cpu: it was taken on this machine's processor: its rate holds.

    Raises:
        ValueError: it is damaged, or says what no burst can.
    """
    if len(kept) > _MOST_FRAME_BYTES:
        raise ValueError("a frame of a length that none has")
    record = decode(payload_of(kept))
    if not isinstance(record, BurstRecord) or not record.is_stored:
        raise ValueError("no stored burst")
    _check(record, bins)
    return record if is_same_cpu else msgspec.structs.replace(record, timed=None)


def _check(record: BurstRecord, bins: int) -> None:
    counts = np.concatenate([np.frombuffer(raw, "<i8") for raw in (record.reuses, record.censored)])
    if np.any(counts < 0) or np.any(counts > _MOST_COUNT) or counts.sum() > _MOST_COUNT:
        raise ValueError("counts that no burst has")
    if record.histogram().accesses != record.accesses:
        raise ValueError("a histogram of other accesses")
    if not 0 <= record.writes <= record.rows <= _MOST_COUNT:
        raise ValueError("more stores than references")
    if not 0 <= record.instructions <= _MOST_COUNT or not 0 <= record.pages_missed <= record.rows:
        raise ValueError("more pages or instructions than a burst has")
    if not 0 <= record.scattered <= record.accesses:
        raise ValueError("more scattered accesses than a burst has")
    if len(code_vector(record.code)) not in (0, bins):
        raise ValueError("a branch vector of another length")
    timed = record.timed
    if timed is None:
        return
    figures = (timed.accesses, timed.cpu_seconds, timed.error)
    if not all(math.isfinite(each) for each in figures) or not 0 <= timed.error <= 10:
        raise ValueError("a time that is none")
    if not timed.cpu_seconds > 0:
        raise ValueError("a time that is none")
    if not _RATES[0] <= timed.accesses_per_cpu_second <= _RATES[1]:
        raise ValueError("a rate that no processor has")


def pack_hits(leader: Leader) -> bytes:
    """Return the branch vector of a phase as it is kept."""
    return zlib.compress(leader.hits.astype(_HITS).tobytes(), _LEVEL)


def unpack_leader(phase: int, hits: bytes, remembered: float, windows: int, *, bins: int) -> Leader:
    """Read a phase.

    Raises:
        ValueError: it says what no phase can.
    """
    plain = inflate(hits, bins * np.dtype(_HITS).itemsize + 1)
    vector = np.frombuffer(plain, _HITS).astype(np.float64)
    if vector.shape != (bins,) or not np.isfinite(vector).all() or np.any(vector < 0):
        raise ValueError("no branch vector")
    if not 0 < vector.sum() <= _MOST_HITS:
        raise ValueError("no hits")
    if not 0 < remembered <= 1e6 or not 1 <= windows <= _MOST_COUNT or phase < 0:
        raise ValueError("windows that no phase has")
    return Leader(phase, vector, float(remembered), int(windows))


def code_set(record: BurstRecord) -> int:
    """Return which code a burst ran: a bit for each bin of its branch vector."""
    return int.from_bytes(np.packbits(code_vector(record.code) > 0).tobytes(), "little")


def chosen(bursts: Iterable[StoredBurst]) -> tuple[StoredBurst, ...]:
    """Choose what is kept of bursts, oldest first.

    Of each phase the longest burst stays, for what large caches do, and the latest one; of the
    others those go first that ran no code that is not among the rest, the oldest of them.
    """
    kept = sorted(bursts, key=lambda each: each.taken_unix_seconds)
    counts = Counter(each.phase for each in kept)
    while kept and (max(counts.values()) > PHASE_BURSTS or len(kept) > PROFILE_BURSTS):
        phase = max(counts, key=lambda each: (counts[each], -each))
        kept.pop(_least_needed(kept, phase))
        counts[phase] -= 1
    return tuple(kept)


def _least_needed(bursts: Sequence[StoredBurst], phase: int) -> int:
    """Which burst of a phase says what others say, too."""
    own = [at for at, each in enumerate(bursts) if each.phase == phase]
    longest = max(own, key=lambda at: (bursts[at].accesses, at))
    free = [at for at in own if at not in (longest, own[-1])] or own[:1]
    once = twice = 0  # code that one of them ran, or more
    for each in bursts:
        twice |= once & each.code
        once |= each.code
    return min(free, key=lambda at: (bursts[at].code & ~twice).bit_count())
