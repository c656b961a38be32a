"""The access source that stops nothing: short bursts, walked beside the running thread."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.line_choice import LineChoice
from memsampd.sampler.perf.arrival import HIT_SECONDS
from memsampd.sampler.records import AccessChunk, Burst, BurstCost, BurstEnd, BurstRequest
from memsampd.sampler.walk.memory import RunningMemory
from memsampd.sampler.walk.state import RSP, USER_END
from memsampd.sampler.walk.thread_area import find_thread_area
from memsampd.sampler.walk.thread_samples import ThreadSample, ThreadSampler
from memsampd.sampler.walk.walker import Walked, Walker

LONGEST_ACCESSES = 4000
"""Of a walk: each takes some 5 to 20 us, and the target changes the memory that it reads."""
_PATIENCE_SECONDS = 0.2
_MOST_SECONDS = 0.5


class WalkSource:
    """Takes bursts of one process without a stop.

    It is a :class:`~memsampd.sampler.protocols.AccessSource`. A thread is interrupted once, for a
    microsecond, as for any sample. Its instructions are followed from there in this process:
    values come from its registers, and from its memory, which is read while it runs on. Nothing is
    traced, held, written or started.

    Args:
        pid: the target.
        rng: chooses moments, and guesses where a jump depends on what cannot be known.
    """

    name = "watchpoints"

    def __init__(self, pid: int, rng: random.Random) -> None:
        self._pid = pid
        self._sampler = ThreadSampler(rng)
        self._memory = RunningMemory(pid)
        self._walker = Walker(self._memory, rng, self._memory.is_code)
        self._areas: dict[int, int | None] = {}
        self._mapped = (0, 0)
        self._closing = threading.Event()
        self._rows = _chunk([])

    def capture(self, request: BurstRequest) -> Burst:
        """Observe one thread from where it is now.

        Raises:
            CaptureError: not now; see its reason.
        """
        if self._closing.is_set():
            return self._nothing(request.tid)
        began_seconds = time.thread_time()
        self._memory.begin()
        sample = self._sample(request.tid)
        deadline_seconds = time.monotonic() + _MOST_SECONDS
        most_rows = min(request.max_accesses, LONGEST_ACCESSES)
        area = self._thread_area(sample)
        walked = self._walker.walk(
            sample.ip, sample.registers, most_rows, deadline_seconds, area, sample.stack
        )
        self._rows = _chunk(walked.rows)
        cost = BurstCost(
            hit_seconds=HIT_SECONDS,  # an interrupt, too
            tracer_cpu_seconds=time.thread_time() - began_seconds,
        )
        return self._burst(sample, walked, cost)

    def _thread_area(self, sample: ThreadSample) -> int | None:
        """The fs base of the thread, looked for once; again after an exec."""
        space = self._memory.space
        mapped = (space.mappings[0].start, space.mappings[-1].start) if space.mappings else (0, 0)
        if mapped != self._mapped:
            self._mapped, self._areas = mapped, {}
        if sample.tid not in self._areas:
            stack = sample.registers[RSP]
            is_first = sample.tid == self._pid
            self._areas[sample.tid] = find_thread_area(self._memory, space, stack, is_first)
        return self._areas[sample.tid]

    def _sample(self, tid: int) -> ThreadSample:
        sample = self._sampler.next(tid, _PATIENCE_SECONDS)
        if sample is None:
            raise CaptureError(
                "not-running",
                f"thread {tid} used no CPU time of its own for {_PATIENCE_SECONDS:g} s",
                "it is tried again when a thread has run",
            )
        return sample

    def _nothing(self, tid: int) -> Burst:
        """What there is after the end."""
        self._rows = none = _chunk([])
        return Burst(
            none.ip,
            none.address,
            none.size_bytes,
            none.is_write,
            pid=self._pid,
            tid=tid,
            time_seconds=time.monotonic(),
            instructions=0,
            prefetches=0,
            end=BurstEnd.DEADLINE,
        )

    def _burst(self, sample: ThreadSample, walked: Walked, cost: BurstCost) -> Burst:
        rows = self._rows
        return Burst(
            rows.ip,
            rows.address,
            rows.size_bytes,
            rows.is_write,
            pid=self._pid,
            tid=sample.tid,
            time_seconds=sample.time_seconds,
            instructions=walked.code_times.total(),
            prefetches=walked.prefetches,
            end=walked.end,
            end_detail=_detail(walked),
            cost=cost,
            beyond_accesses=len(rows),
            is_plausible=True,
            stretch=np.array(walked.registers, np.uint64),
            stretch_ip=np.array(walked.ips, np.uint64),
            stretch_shares=walked.shares,
            code_ip=np.fromiter(walked.code_times.keys(), np.uint64),
            code_times=np.fromiter(walked.code_times.values(), np.uint64),
            repeats=walked.repeats,
        )

    def count_lines(
        self, request: BurstRequest, line_bytes: int, counter: _core.ReuseCounter
    ) -> Burst:
        """The same, the reuse distances of lines being counted."""
        burst = self.capture(request)
        counter.add(_core.line_stream(burst.address, burst.size_bytes, line_bytes.bit_length() - 1))
        return _without_rows(burst)

    def count_rest(self, line_bytes: int, counter: _core.ReuseCounter) -> Burst | None:
        """None: a walk is too short to be told in parts."""
        del line_bytes, counter
        return None

    def rows_again(self, most: int, choice: LineChoice) -> tuple[NDArray[np.uint32], AccessChunk]:
        """Rows of the last burst of chosen lines, but for those whose addresses nobody knows."""
        known = self._rows.part(np.flatnonzero(self._rows.address < USER_END)[:most])
        at = np.flatnonzero(choice.has(known.address))
        return at.astype(np.uint32), known.part(at)

    def cancel(self) -> None:
        """Take no more; the present one takes half a second at most."""
        self._closing.set()

    def close(self) -> None:
        """Nothing is left behind; may be called twice."""
        self._closing.set()
        self._memory.close()
        self._rows = _chunk([])


def _chunk(rows: Sequence[tuple[int, int, int, bool]]) -> AccessChunk:
    ip, address, size_bytes, is_write = zip(*rows, strict=True) if rows else ((), (), (), ())
    return AccessChunk(
        np.array(ip, np.uint64),
        np.array(address, np.uint64),
        np.array(size_bytes, np.uint16),
        np.array(is_write, np.bool_),
    )


def _detail(walked: Walked) -> str:
    """Why it ended, and what in it was not known."""
    told = (
        walked.detail,
        f"{walked.guesses} jumps guessed" if walked.guesses else "",
        f"{walked.unknown_rows} addresses unknown" if walked.unknown_rows else "",
    )
    return "; ".join(each for each in told if each)


def _without_rows(burst: Burst) -> Burst:
    none = _chunk([])
    return replace(
        burst, ip=none.ip, address=none.address, size_bytes=none.size_bytes, is_write=none.is_write
    )
