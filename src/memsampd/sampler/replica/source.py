"""The access source of machines without a PMU: bursts from a replica of the target."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.line_choice import LineChoice
from memsampd.sampler.perf.arrival import Arrival
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.rates import CoreTimes
from memsampd.sampler.records import AccessChunk, Burst, BurstCost, BurstEnd, BurstRequest
from memsampd.sampler.replica.collectors import Collector, Counted, Rows
from memsampd.sampler.replica.common_forms import common_forms
from memsampd.sampler.replica.forms import FormDecoder
from memsampd.sampler.replica.holding import HOLDS
from memsampd.sampler.replica.holds import HoldLimit
from memsampd.sampler.replica.taken import PATIENCE_SECONDS, Taken
from memsampd.sampler.replica.target import read_traits

# System calls that a chain goes over take this long at most, waiting for a CPU included.
_CHAIN_SECONDS = 0.1
# Code is learnt by running the replica while the target runs on: so long at first. What it records
# is thrown away whenever there is as much of it.
_DRY_ACCESSES = 50_000
_DRY_SECONDS = 0.1
_DRY_RUNS = 4
_FEW_INSTRUCTIONS = 200
# Bursts that come to an instruction of an unknown form at once, one after the other.
_COLD_TRIES = 8


class _Rest(msgspec.Struct, frozen=True):
    """What of a burst was not handed over yet.

    Attributes:
        request: what was asked for.
        taken: what came of it.
        parts: how many it has; code of unlike speeds was run in them.
        part: the next one.
        rows: of the parts before.
    """

    request: BurstRequest
    taken: Taken
    parts: int
    part: int = 0
    rows: int = 0


class ReplicaSource:
    """Takes bursts of one process (:class:`memsampd.sampler.protocols.AccessSource`).

    Calls may come from any thread, one at a time; the replica ends with the thread that made the
    first burst, and is then made anew.

    Args:
        pid: the target.
        proc: root of the proc file system.
        can_query: ask the kernel for single areas of the target, where it can tell (Linux 6.11);
            else read the list of all.
        may_keep: keep the replica's pages from burst to burst, where the kernel can (Linux 6.4).

    Attributes:
        charge: told the CPU time of each thread that the core had for a burst, which has ended.

    Raises:
        CaptureError: the target is gone, a 32-bit program, or there is no room for translated code
            in it.
        OSError: no replica can be made on this machine.
    """

    name = "replica"

    def __init__(
        self,
        pid: int,
        proc: Path = PROC,
        *,
        can_query: bool = True,
        may_keep: bool = True,
    ) -> None:
        self._pid = pid
        self._proc = proc
        self._can_query = can_query
        self._may_keep = may_keep
        self._forms = FormDecoder()
        self._known_forms = common_forms()
        self._holds = HoldLimit()
        self._is_cancelled = self._is_closed = False
        self._last: BurstRequest | None = None  # whose record is still there
        self._rest: _Rest | None = None
        self._spent = BurstCost()  # and not told yet
        self._cut_short = False  # the same
        self._knows_code = False
        self._refused: Taken | None = None  # by the present program, for good
        self.charge: Callable[[float], None] = lambda seconds: None
        self._replica = self._make()

    def _make(self) -> _core.Replica:
        traits = read_traits(self._pid, self._proc)
        try:
            replica = _core.Replica(
                self._pid,
                traits.area_address,
                can_query=self._can_query,
                supplies_pages=traits.supplies_pages,
                shares_clock=traits.shares_clock,
                may_keep=self._may_keep,
            )
        except (ProcessLookupError, FileNotFoundError) as error:
            raise CaptureError("gone", f"process {self._pid} is gone: {error}") from error
        replica.add_forms(self._known_forms)
        return replica

    def _renew(self) -> None:
        """Another replica, after an exec of the target or when the old one is lost."""
        self._replica.close()
        self._last = None
        self._knows_code = False
        self._refused = None
        try:
            self._replica = self._make()
        except OSError as error:
            raise CaptureError("lost", f"no replica of process {self._pid}: {error}") from error
        if self._is_cancelled:
            self._replica.cancel()

    def capture(self, request: BurstRequest) -> Burst:
        """Observe one thread from where it is now.

        Raises:
            CaptureError: not now; see its reason.
        """
        return self._capture(request, Rows())

    def stream(self, request: BurstRequest, consume: Callable[[AccessChunk], None]) -> Burst:
        """Observe one thread from where it is now, handing rows over chunk by chunk.

        Returns:
            The burst without its rows.

        Raises:
            CaptureError: not now; see its reason.
        """
        return self._capture(request, Rows(consume))

    def count_lines(
        self, request: BurstRequest, line_bytes: int, counter: _core.ReuseCounter
    ) -> Burst:
        """The same, the reuse distances of lines being counted as they are made.

        Raises:
            CaptureError: not now; see its reason.
            UsageError: ``line_bytes`` is no power of two.
        """
        return self._capture(request, Counted(line_bytes, counter))

    def count_rest(self, line_bytes: int, counter: _core.ReuseCounter) -> Burst | None:
        """The next part of the last burst, if its code changed to such as goes at another speed."""
        if self._rest is None or self._is_closed:
            return None
        return self._hand_over_part(self._rest, Counted(line_bytes, counter), BurstCost())

    def rows_again(self, most: int, choice: LineChoice) -> tuple[NDArray[np.uint32], AccessChunk]:
        """Rows of the last burst of chosen lines, from what the replica recorded."""
        rows, time = Rows(), np.empty(0, np.uint32)
        if self._last is not None and not self._is_closed:
            most = min(most, self._last.max_accesses)
            told, chunk = self._replica.rows_again(most, choice.line_bits, choice.odd, choice.below)
            time = np.frombuffer(told, np.uint32)
            rows.take(chunk)
        return time, rows.kept()

    def cancel(self) -> None:
        """End the present burst and all later ones at once; from any thread."""
        self._is_cancelled = True
        self._replica.cancel()

    def close(self) -> None:
        """End the replica; may be called twice."""
        self._is_closed = True
        self._replica.close()

    def costs(self) -> dict[str, float]:
        """Counts and times of all runs so far, by name (seconds, or how many)."""
        return self._replica.costs()

    def features(self) -> dict[str, bool]:
        """What the kernel offers, as far as tried: "can_query", "can_protect", "can_keep"."""
        return self._replica.features()

    def process(self) -> int:
        """Process id of the replica."""
        return self._replica.process()

    # ---- Taking ----

    def _capture(self, request: BurstRequest, collector: Collector) -> Burst:
        if self._is_closed:
            raise CaptureError("closed", "the access source is closed")
        self._last = self._rest = None
        started = time.thread_time()
        try:
            self._rest = self._taken(request, collector)
        except CaptureError as error:
            error.cost += self._take_cost(started)
            raise
        return self._hand_over_part(self._rest, collector, self._take_cost(started))

    def _take_cost(self, started_seconds: float) -> BurstCost:
        """What has been spent since this was asked last, and by this thread since then."""
        spent, self._spent = self._spent, BurstCost()
        return spent + BurstCost(tracer_cpu_seconds=time.thread_time() - started_seconds)

    def _taken(self, request: BurstRequest, collector: Collector) -> _Rest:
        if self._replica.is_stale():
            self._renew()
        if self._refused is not None:
            raise self._refused.refusal(self._pid)
        if not self._knows_code:
            self._learn(request)
            self._knows_code = True
        taken = self._take(request)
        self._last = request
        parts = 1
        if collector.counter:
            parts = self._replica.parts(request.max_accesses, bool(request.seek_ips))
        return _Rest(request, taken, parts)

    def _hand_over_part(self, rest: _Rest, collector: Collector, cost: BurstCost) -> Burst:
        """The next part of what was taken, or all of it."""
        started = time.thread_time()
        taken, begun_rows = rest.taken, rest.rows
        # How many lines `rep movs` went through is told roughly before they are counted.
        went_beyond = taken.accesses > taken.held_accesses
        held_rows = max(taken.held_accesses, begun_rows)
        is_whole, is_last = rest.parts == 1, rest.part + 1 == rest.parts
        limit = rest.request.max_accesses - begun_rows
        self._hand_over(limit, collector, -1 if is_whole else rest.part)
        code_ip, code_times = (np.frombuffer(each, np.uint64) for each in self._replica.visits())
        core, repeats = CoreTimes(*self._replica.core_times()), self._replica.repeats()
        self._rest = None
        if not is_last:
            self._rest = replace(rest, part=rest.part + 1, rows=begun_rows + collector.rows)
        end, detail = (
            taken.ending(self._pid, self._proc) if is_last else (BurstEnd.FULL, "its code changed")
        )
        rows = collector.kept()
        cut_short, self._cut_short = self._cut_short, False
        registers, ips, shares = taken.moments(begun_rows, collector.rows, is_last=is_last)
        cost += BurstCost(tracer_cpu_seconds=time.thread_time() - started)
        return Burst(
            ip=rows.ip,
            address=rows.address,
            size_bytes=rows.size_bytes,
            is_write=rows.is_write,
            pid=self._pid,
            tid=rest.request.tid,
            time_seconds=taken.started_seconds,
            instructions=collector.instructions,
            prefetches=collector.prefetches,
            end=end,
            end_detail=detail,
            cost=cost,
            accesses=collector.rows,
            writes=collector.writes,
            calls=taken.calls,
            calls_compared=taken.compared,
            calls_equal=taken.equal,
            pages_predicted=taken.pages_predicted,
            pages_missed=taken.pages_missed,
            beyond_accesses=max(begun_rows + collector.rows - held_rows, 0) if went_beyond else 0,
            is_plausible=taken.has_company,
            cut_short=cut_short,
            part=rest.part,
            stretch=registers,
            stretch_ip=ips,
            stretch_shares=shares,
            code_ip=code_ip,
            code_times=code_times,
            core=core,
            repeats=repeats,
        )

    def _take(self, request: BurstRequest) -> Taken:
        """A burst; the last of some tries where code was not known before."""
        for _ in range(_COLD_TRIES):
            self._holds.wait(request.max_stop_seconds, lambda: self._is_cancelled)
            with Arrival(request.tid, request.seek_ips) as arrival:
                taken = self._burst(
                    request.tid,
                    request.max_accesses,
                    request.max_stop_seconds - self._holds.lately_seconds(),
                    chain_seconds=_CHAIN_SECONDS,
                    beyond_seconds=request.beyond_seconds,
                    arrival=arrival.descriptors,
                    arrival_seconds=request.seek_seconds,
                    arrival_end=request.seek_end,
                )
                self._spent += BurstCost(hit_seconds=arrival.lost_seconds)
            if taken.is_lost:
                self._renew()
                if taken.holds == 0:  # it was gone before: perhaps with the thread that made it
                    continue
                raise CaptureError("lost", f"the replica of process {self._pid} was lost")
            if taken.status == "not-64-bit":  # what our stop breaks off there is not set right
                self._refused = taken
            if taken.status != "ok":
                raise taken.refusal(self._pid)
            if taken.end != "cold" or self._is_cancelled:
                break
        return taken

    def _learn(self, request: BurstRequest) -> None:
        """Have the code translated that runs now, by a replica that nobody believes.

        The target is only held to read its registers; it then runs on.
        """
        for _ in range(_DRY_RUNS):
            before = self._replica.costs()["translated_instructions"]
            taken = self._burst(
                request.tid, _DRY_ACCESSES, request.max_stop_seconds, dry_seconds=_DRY_SECONDS
            )
            learnt = self._replica.costs()["translated_instructions"] - before
            if taken.status != "ok" or taken.is_lost or learnt < _FEW_INSTRUCTIONS:
                break

    def _burst(
        self,
        tid: int,
        accesses: int,
        hold_seconds: float,
        *,
        chain_seconds: float = 0.0,
        dry_seconds: float = 0.0,
        beyond_seconds: float = 0.0,
        arrival: tuple[int, int] = (-1, -1),
        arrival_seconds: float = 0.0,
        arrival_end: int = -1,
    ) -> Taken:
        with HOLDS.one():
            told: dict[str, Any] = self._replica.burst(
                tid,
                accesses,
                hold_seconds,
                patience_seconds=PATIENCE_SECONDS,
                chain_seconds=chain_seconds,
                dry_seconds=dry_seconds,
                describe=self._describe_form,
                beyond_seconds=beyond_seconds,
                arrival_leader=arrival[0],
                arrival=arrival[1],
                arrival_seconds=arrival_seconds,
                arrival_end=arrival_end,
            )
        taken = Taken(**told)
        self._holds.add(taken.held_seconds)
        self._spent += taken.cost
        self.charge(taken.tracer_cpu_seconds)
        self._cut_short |= taken.cut_short
        return taken

    def _describe_form(self) -> None:
        key, sample, operands_bytes = self._replica.wanted_form()
        if key == 0:  # there was no room for more translations
            return
        form = self._forms.describe(key, sample, operands_bytes).tobytes()
        self._known_forms += form
        self._replica.add_forms(form)

    def _hand_over(self, most: int, collector: Collector, part: int = -1) -> None:
        self._replica.begin_take(most, collector.line_shift, collector.counter, part)
        while (chunk := self._replica.take()) is not None:
            collector.take(chunk)
