"""A pipeline whose target, samples and bursts are what a test says: no process, no clock."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from rowless import rowless_burst

from memsampd.daemon.learners import Known, Learners
from memsampd.daemon.ledger import Ledger
from memsampd.daemon.pipeline import Pipeline, PipelineParts
from memsampd.daemon.planner import BurstLimits, Planner
from memsampd.daemon.sampled_lines import SampledLine
from memsampd.daemon.sampling import Sampling
from memsampd.daemon.tracer import CaptureOrder, CaptureResult, CountedBurst
from memsampd.daemon.turns import Actions, Counts, Turn
from memsampd.daemon.watching import OPEN_LINES, SHORT_BURST, WatchPlan
from memsampd.errors import CapabilityError, CaptureError, MemsampdError
from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import (
    BurstRecord,
    EstimatorEvent,
    ExecRecord,
    StoreDropRecord,
    WatchRecord,
    WindowRecord,
)
from memsampd.exporters.snapshot import AddressTally, BurstTally, Overhead
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.open_lines import OpenLine
from memsampd.phases.drift import DriftMonitor
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.predictor import RunLengthMarkov
from memsampd.phases.schedule import make_schedule
from memsampd.phases.schedule.phase_guided import PhaseGuided
from memsampd.phases.unseen import UnseenCode
from memsampd.phases.windows import WindowCutter, code_bins
from memsampd.sampler.clock.progress import ProgressClock
from memsampd.sampler.perf.watch import Watched, WatchOrder
from memsampd.sampler.process.mapped import MemoryUse
from memsampd.sampler.records import BranchSamples, Burst, BurstCost, BurstEnd
from memsampd.sampler.spacing import DataSpacing

PID = 4242
WINDOW_SECONDS, PERIOD_SECONDS = 0.1, 0.01
SIZES_BYTES = np.array([1 << octave for octave in range(10, 22)], np.int64)
COST = BurstCost(stop_seconds=0.002, stops=1, longest_stop_seconds=0.002, hit_seconds=0.001)
BURST = rowless_burst(
    pid=PID, tid=PID, instructions=5000, end=BurstEnd.HOLD, cost=COST, accesses=4000
)
Answer = Burst | CaptureError
Kind = TypeVar("Kind")


@dataclass
class World:
    """A target that runs all the time, a window a turn, and a tracer that answers an order.

    Attributes:
        answer: what comes of an order, in the turn after it.
        windows: how long it runs.
        lines: lines that a burst goes through, again and again.
        rest: later parts that it has.
        code: address that samples find.
        pid: the process that they find: it, or a child.
        rare: one that every tenth of them finds, and bursts do not; None: there is none.
        execs: times of execs.
        rate: accesses per second, which a register counts; None: registers are not known.
        area_bytes: its code reads all over so large an area; None: there is no code to be seen.
        before: what another session learned of the program.
        sampled_share: for this part of the time branches are sampled.
    """

    answer: Callable[[CaptureOrder], Answer] = lambda order: BURST
    windows: int = 40
    own_cpu_share: float = 100.0
    schedule_name: str = "all"
    lines: int = 100
    rest: tuple[Burst, ...] = ()
    code: int = 7
    pid: int = PID
    rare: int | None = None
    execs: list[float] = field(default_factory=list)
    now_seconds: float = 0.0
    orders: list[CaptureOrder] = field(default_factory=list)
    records: list[EstimatorEvent] = field(default_factory=list)
    waiting: list[CaptureResult] = field(default_factory=list)
    forgotten: int = 0
    rate: float | None = None
    area_bytes: int | None = None
    before: World | None = None
    watches: bool = False
    watch_orders: list[WatchOrder] = field(default_factory=list)
    watch_error: MemsampdError | None = None
    own_cpu_seconds: float = 0.0
    tells_code: bool = False  # bursts tell what code they ran
    sampled_lines: list[SampledLine] = field(default_factory=list)  # told in the next turn
    memory: MemoryUse | None = None  # told in the next turn
    period_seconds: float = PERIOD_SECONDS  # of samples
    most_phases: int = 64
    sampled_share: float = 1.0

    def __post_init__(self) -> None:
        schedule = make_schedule(
            self.schedule_name,
            random.Random(1),
            window_seconds=WINDOW_SECONDS,
            share=math.inf if self.schedule_name == "all" else 0.01,
        )
        self.ledger = Ledger(0.01, self.own_cpu_share, 0.0)
        self.estimator = Estimator(SIZES_BYTES, 64)
        self.cutter = WindowCutter(WINDOW_SECONDS, 8, lambda pid, ips: ips, pid=PID)
        self.pipeline = Pipeline(
            PipelineParts(
                pid=PID,
                cutter=self.cutter,
                schedule=schedule,
                planner=Planner(schedule, self.ledger, BurstLimits(200_000, 0.005)),
                ledger=self.ledger,
                estimator=self.estimator,
                learn_anew=self.learn_anew,
                watching=WatchPlan(0.01, random.Random(2)) if self.watches else None,
            ),
            started_seconds=0.0,
        )

    def learn_anew(self, first_phase: int) -> Learners:
        self.forgotten += 1
        known = Known()
        self.clusterer = LeaderFollower(first_id=first_phase, max_phases=self.most_phases, bins=8)
        if self.before is not None:
            leaders = [
                replace(each, phase=each.phase + first_phase)
                for each in self.before.clusterer.leaders(code_bins(8))
            ]
            self.clusterer.restore(leaders)
            bursts = (
                msgspec.structs.replace(
                    each, phase=each.phase + first_phase, time_seconds=-90.0, is_stored=True
                )
                for each in self.before.bursts()[-6:]
            )
            known = Known({each.phase: each.windows for each in leaders}, lambda: tuple(bursts))
        return Learners(
            self.clusterer,
            RunLengthMarkov(),
            DriftMonitor(),
            ProgressClock(),
            UnseenCode(PID),
            DataSpacing(PID, lambda address, size_bytes: self.machine_code[:size_bytes]),
            known,
        )

    @property
    def machine_code(self) -> bytes:
        """At any address: a load through rdi."""
        return b"" if self.area_bytes is None else bytes.fromhex("488b07")

    def samples(self, seconds: float) -> BranchSamples:
        count = round(seconds / self.period_seconds)
        times = self.now_seconds + self.period_seconds * np.arange(count)
        self.now_seconds += seconds
        tids = np.full(count, self.pid, np.int32)
        execs = tuple(each for each in self.execs if each < self.now_seconds)
        self.execs = [each for each in self.execs if each >= self.now_seconds]
        ips = np.full(count, self.code, np.uint64)
        if self.rare is not None:
            ips[::10] = self.rare
        registers = np.zeros((0, 16), np.uint64)
        if self.rate is not None:
            registers = np.zeros((count, 16), np.uint64)
            jitter = 1e-4 * np.random.default_rng(count).random(count)
            registers[:, 1] = (self.rate * (times + jitter)).astype(np.uint64)
        if self.area_bytes is not None:
            registers = np.zeros((count, 16), np.uint64)
            registers[:, 5] = np.linspace(0, self.area_bytes, count)
        return BranchSamples(
            ips,
            tids,
            tids,
            times.astype(np.float64),
            self.period_seconds,
            registers,
            exec_seconds=execs,
        )

    def turn(self, seconds: float = WINDOW_SECONDS) -> Actions:
        samples = self.samples(seconds)
        results, self.waiting = self.waiting, []
        actions = self.pipeline.step(self.told(samples, results))
        self.records += actions.records
        if actions.order is not None:
            self.orders.append(actions.order)
            self.waiting.append(self.result(actions.order))
        self.watch_orders = list(actions.watches)
        return actions

    def told(self, samples: BranchSamples, results: list[CaptureResult]) -> Turn:
        now = self.now_seconds
        own = self.own_cpu_seconds
        turn = Turn(now, now, own, samples, results, "other", "/bin/other", free_watches=4)
        turn = replace(turn, sampled_lines=self.sampled_lines, memory=self.memory)
        turn = replace(turn, sampling=Sampling(share=self.sampled_share))
        self.sampled_lines, self.memory = [], None
        if self.watch_error is not None:
            refused = [(order, self.watch_error) for order in self.watch_orders]
            return replace(turn, refused_watches=refused)
        return replace(turn, watched=[self.watched(order) for order in self.watch_orders])

    def watched(self, order: WatchOrder) -> Watched:
        """A word that was touched twice."""
        times = tuple(self.now_seconds + each for each in (-0.09, -0.08, -0.02, -0.01))
        return Watched(order, times, (0.0, 0.01, 0.07, 0.08), (0, 0), "returned", 0.5, 4e-5)

    def result(self, order: CaptureOrder) -> CaptureResult:
        answer = self.answer(order)
        if isinstance(answer, CaptureError):
            return CaptureResult(None, answer)
        left = tuple(OpenLine((64 * line,), 8, 2000) for line in range(order.open_lines))
        counted = replace(
            self.counted(answer), open_lines=left, rest=tuple(map(self.counted, self.rest))
        )
        return CaptureResult(counted)

    def counted(self, answer: Burst) -> CountedBurst:
        lines = np.arange(answer.accesses, dtype=np.uint64) % np.uint64(self.lines)
        burst = replace(answer, time_seconds=self.now_seconds + 0.02)
        code = np.array([self.code], np.uint64)
        counted = CountedBurst(burst, ReuseHistogram.from_lines(lines), code_ip=code)
        return replace(counted, code_ips=code) if self.tells_code else counted

    def run(self) -> None:
        for _ in range(self.windows):
            self.turn()
        results, self.waiting = self.waiting, []
        self.records += self.pipeline.finish(self.told(self.samples(0.0), results)).records

    def overhead(self) -> Overhead:
        return self.ledger.overhead()

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [record for record in self.records if isinstance(record, kind)]

    def windows_told(self) -> list[WindowRecord]:
        return self.of(WindowRecord)

    def bursts(self) -> list[BurstRecord]:
        return self.of(BurstRecord)

    def ratio(self, size_bytes: int) -> float:
        curve = self.estimator.estimate().curves["lru"]
        return float(curve.miss_ratio[list(SIZES_BYTES).index(size_bytes)])


def test_holds_and_hits_are_charged_and_nothing_else() -> None:
    cost = COST + BurstCost(replica_cpu_seconds=0.001, tracer_cpu_seconds=5.0)
    world = World(lambda order: replace(BURST, cost=cost))
    world.run()
    taken = len(world.bursts())
    assert taken > 30
    overhead = world.overhead()
    assert overhead.target_cpu_seconds == pytest.approx(4.0)
    assert overhead.stop_seconds == pytest.approx(0.002 * taken)
    assert overhead.spent_share == pytest.approx(0.003 * taken / 4.0)
    assert overhead.own_cpu_seconds == pytest.approx(0.001 * taken)
    assert {order.max_stop_seconds for order in world.orders} == {0.005}


def test_what_bursts_go_over_is_counted() -> None:
    burst = replace(
        BURST,
        calls=3,
        calls_compared=2,
        calls_equal=1,
        pages_predicted=90,
        pages_missed=10,
        is_plausible=True,
        cut_short=True,
    )
    world = World(lambda order: burst)
    world.run()
    n = len(world.bursts())
    counts = world.pipeline.counts
    assert counts.tally == BurstTally(n, n, 3 * n, 2 * n, n, 90 * n, 10 * n, n, n * burst.accesses)
    assert counts.ends == {"hold": n}
    record = world.bursts()[-1]
    assert (record.calls, record.pages_missed, record.is_plausible) == (3, 10, True)
    assert world.ratio(1024) > world.ratio(1 << 21)


def test_a_burst_in_parts_is_one_burst() -> None:
    """It ended as its last part did, and saw what all of them saw."""
    cost = BurstCost(stop_seconds=1e-4, stops=1, tracer_cpu_seconds=0.01)
    first = replace(BURST, accesses=60_000, cost=cost, end=BurstEnd.FULL)
    rest = tuple(
        replace(BURST, accesses=50_000, cost=BurstCost(), end=end, part=part)
        for part, end in ((1, BurstEnd.FULL), (2, BurstEnd.SYSCALL))
    )
    world = World(lambda order: first, rest=rest, schedule_name="phase-guided", windows=100)
    world.run()
    n = sum(record.part == 0 for record in world.bursts())
    assert n > 2
    assert len(world.bursts()) == 3 * n
    counts = world.pipeline.counts
    assert counts.ends == {"syscall": n}
    assert counts.tally == BurstTally(bursts=n, accesses=160_000 * n)
    schedule = world.pipeline.parts.schedule
    assert isinstance(schedule, PhaseGuided)
    (phase,) = schedule._phases.values()
    assert phase.seen.bursts == n
    assert phase.seen.cpu_seconds == pytest.approx(0.01 * n)


def test_a_burst_comes_after_the_window_of_its_moment() -> None:
    world = World()
    world.run()
    *taken, last = world.bursts()
    moments = [int(record.time_seconds / WINDOW_SECONDS) for record in taken]
    assert [record.window for record in taken] == moments
    assert last.window == 39  # it came when the target had ended
    ended: set[int] = set()
    for record in world.records:
        if isinstance(record, WindowRecord):
            ended.add(record.index)
        elif isinstance(record, BurstRecord):
            assert record.window in ended


def test_the_first_burst_is_ordered_at_once_and_its_window_ends_with_it() -> None:
    world = World(schedule_name="phase-guided")
    first = world.turn(0.02)
    assert first.order is not None
    assert first.order.delay_seconds == 0
    assert first.order.thread_samples == {PID: 2}
    assert first.order.beyond_seconds > 0
    assert first.records == ()
    second = world.turn(0.03)
    assert [type(record) for record in second.records] == [WindowRecord, BurstRecord]
    assert world.estimator.estimate().curves
    assert not world.pipeline.hurries


def test_empty_bursts_are_not_tried_beyond_the_budget() -> None:
    cost = BurstCost(stop_seconds=0.02, stops=1, longest_stop_seconds=0.02)
    world = World(lambda order: replace(BURST, accesses=0, cost=cost), schedule_name="phase-guided")
    for _ in range(200):
        world.turn(0.01)
    allowed = 0.05 + 0.01 * world.now_seconds + 0.02  # the allowance, the share, one burst more
    assert len(world.orders) >= 3
    assert 0.02 * (len(world.orders) - 1) <= allowed


def test_nothing_is_ordered_as_long_as_nothing_runs() -> None:
    world = World(schedule_name="phase-guided")
    assert world.pipeline.hurries
    assert world.turn(0.0).order is None
    assert world.turn(0.01).order is not None


def test_what_was_refused_or_empty_is_tried_again_at_once() -> None:
    answers: list[Answer] = [
        CaptureError("not-running", "it sleeps"),
        replace(BURST, accesses=0),
        BURST,
        BURST,
    ]
    world = World(lambda order: answers[len(world.orders) - 1], schedule_name="phase-guided")
    assert [world.turn(0.01).order is not None for _ in range(4)] == [True, True, True, False]
    world.turn(0.03)
    assert world.estimator.estimate().curves


def test_code_without_accesses_gets_as_many_bursts_as_other_code() -> None:
    spinning = replace(BURST, accesses=0, writes=0, instructions=500_000)

    def world_of(answer: Burst) -> World:
        return World(lambda order: answer, schedule_name="phase-guided", windows=100)

    answers = (BURST, spinning, replace(spinning, instructions=9_999))
    worlds = [world_of(answer) for answer in answers]
    for world in worlds:
        world.run()
    usual, settled, unknown = (len(world.orders) for world in worlds)
    assert 0 < settled <= usual < unknown
    estimate = worlds[1].estimator.estimate()
    assert estimate.unknown_cpu_seconds == 0
    assert estimate.rate.accesses_per_cpu_second == 0
    assert worlds[2].estimator.estimate().unknown_cpu_seconds > 0


def test_a_schedule_without_bursts_is_kept_to() -> None:
    world = World(schedule_name="none")
    world.run()
    assert world.orders == []
    assert not world.pipeline.hurries


def test_bursts_wait_for_own_cpu_time_and_windows_do_not() -> None:
    cost = BurstCost(stop_seconds=1e-4, stops=1, replica_cpu_seconds=100.0)
    world = World(lambda order: replace(BURST, cost=cost), own_cpu_share=0.05)
    world.run()
    assert (len(world.orders), len(world.bursts())) == (1, 1)
    assert world.pipeline.counts.windows >= 40
    assert world.overhead().waits_for_own_cpu
    assert world.overhead().own_cpu_waited_seconds == pytest.approx(4.0, abs=0.3)


def test_what_the_next_window_will_not_change_is_asked_ever_more_rarely() -> None:
    refusal = CaptureError("forbidden", "the kernel refuses", "see doctor", BurstCost(0.001))
    world = World(lambda order: refusal)
    world.run()
    assert 4 <= len(world.orders) <= 8  # after 1, 2, 4, ... windows
    counts = world.pipeline.counts
    assert counts.errors["forbidden"] in (len(world.orders), len(world.orders) - 1)
    assert counts.words == {"forbidden": "the kernel refuses; see doctor"}
    assert world.pipeline.trouble == "the kernel refuses; see doctor"


def test_a_thread_that_sleeps_is_no_trouble() -> None:
    world = World(lambda order: CaptureError("not-running", "it sleeps"))
    world.run()
    assert len(world.orders) > 30
    assert world.pipeline.trouble == ""


def test_who_sleeps_is_waited_for_all_the_time_and_nothing_is_counted() -> None:
    world = World(
        lambda order: CaptureError("none-ran", "nobody ran"), schedule_name="phase-guided"
    )
    world.turn()
    for _ in range(100):
        world.turn(0.0)
    assert len(world.orders) >= 50
    assert world.orders[-1].thread_samples == {PID: 10}
    assert world.pipeline.counts.errors == {}
    assert world.pipeline.trouble == ""


def test_a_single_failure_is_no_trouble_either() -> None:
    answers: list[Answer] = [BURST, CaptureError("lost", "gone")]
    world = World(lambda order: answers[len(world.orders) % 2])
    world.run()
    assert len(world.orders) > 20
    assert world.pipeline.trouble == ""


def timed_burst(order: CaptureOrder) -> Burst:
    """A burst in which rbx counts the accesses."""
    stretch = np.zeros((3, 16), np.uint64)
    stretch[1:, 1] = BURST.accesses
    return replace(BURST, stretch=stretch, stretch_ip=np.full(3, 7, np.uint64))


def test_bursts_are_timed_by_the_samples_about_them() -> None:
    """A register counts accesses: 1e9 a second, and the burst's own tell how many a step is."""
    world = World(timed_burst, windows=30)
    world.rate = 1e9
    world.run()
    timed = [each.timed for each in world.bursts() if each.timed]
    assert timed
    rates = [each.accesses_per_cpu_second for each in timed]
    assert rates == pytest.approx([1e9] * len(rates), rel=0.05)
    told = world.windows_told()[-1].rates
    assert told[0].accesses_per_cpu_second == pytest.approx(1e9, rel=0.05)


def between_bursts(world: World) -> None:
    """Go on until no burst is awaited, and none is due soon."""
    world.turn()
    while world.waiting or world.pipeline.parts.schedule.windows_left(0) < 5:
        world.turn()


@pytest.mark.parametrize(("rate", "gets_one"), [(1.03e9, False), (2e8, True)])
def test_code_that_goes_at_another_pace_gets_a_burst_at_once(rate: float, gets_one: bool) -> None:
    world = World(timed_burst, schedule_name="phase-guided")
    world.rate = 1e9
    between_bursts(world)
    before, world.rate = len(world.orders), rate
    for _ in range(4):
        world.turn()
    assert (len(world.orders) > before) == gets_one


@pytest.mark.parametrize(("area_bytes", "gets_one"), [(1 << 16, False), (1 << 26, True)])
def test_code_that_works_on_a_larger_area_gets_a_burst_at_once(
    area_bytes: int, gets_one: bool
) -> None:
    world = World(schedule_name="phase-guided", area_bytes=1 << 16)
    between_bursts(world)
    before, world.area_bytes = len(world.orders), area_bytes
    for _ in range(4):
        world.turn()
    assert (len(world.orders) > before) == gets_one
    told = [each.spacing for each in world.windows_told()]
    octaves = [each.octaves for each in told if each is not None]
    assert len(octaves) == len(told)
    assert octaves[-1] - octaves[0] == pytest.approx(10 if gets_one else 0, abs=0.1)
    bursts = [each.spacing for each in world.bursts()]
    assert len(bursts) > 1
    assert None not in bursts


def world_of_seen_code() -> World:
    """A program whose code bursts have seen; none is awaited."""
    world = World(schedule_name="phase-guided", tells_code=True)
    for _ in range(10):
        world.turn()
    while world.waiting or world.pipeline.awaits_burst:
        world.turn()
    return world


def test_a_program_that_goes_on_to_other_code_gets_a_burst_at_once() -> None:
    """It is not asked for again while it is awaited, nor when it has seen that code."""
    world = world_of_seen_code()
    assert not world.pipeline.runs_new_code(world.samples(0.15))
    before, world.code = len(world.orders), 300
    assert world.pipeline.runs_new_code(world.samples(0.15))
    world.turn(0.05)
    assert len(world.orders) == before
    world.turn(0.15)
    assert len(world.orders) == before + 1
    assert world.orders[-1].delay_seconds == 0
    assert not world.pipeline.runs_new_code(world.samples(0.15))
    world.turn()
    world.turn()
    assert not world.pipeline.runs_new_code(world.samples(0.15))


def test_of_code_that_only_child_processes_run_no_burst_is_ordered() -> None:
    """None of the parent is taken in its place; the next code of the parent's own gets one."""
    world = world_of_seen_code()
    before, world.code, world.pid = len(world.orders), 300, PID + 1
    assert not world.pipeline.runs_new_code(world.samples(0.15))
    for _ in range(20):
        assert world.turn().order is None
        assert not world.pipeline.hurries
    assert world.pipeline.counts.child_cpu_seconds == pytest.approx(20 * WINDOW_SECONDS)
    world.pid = PID
    while len(world.orders) == before:
        world.turn()
    assert set(world.orders[-1].thread_samples) == {PID}


def test_who_takes_turns_with_its_children_has_bursts_where_it_runs_itself() -> None:
    """Those that are due: the children's windows are not taken for new code without a burst."""
    world, ordered_after, left = world_of_seen_code(), set[int](), set[float]()
    for turn in range(200):
        world.code, world.pid = (300, PID + 1) if turn % 2 else (7, PID)
        order = world.turn().order
        if turn <= 20:  # it is not known yet that they take turns
            continue
        if order is not None:
            ordered_after.add(world.pid)
            assert set(order.thread_samples) == {PID}
        if world.pid != PID:
            left.add(world.pipeline.parts.schedule.windows_left(world.pipeline.phase))
    assert ordered_after == {PID + 1}
    assert min(left) > 0  # nothing is due of the children's phase


def test_the_first_burst_of_all_waits_for_the_process_itself() -> None:
    world = World(schedule_name="phase-guided", pid=PID + 1)
    assert [world.turn(0.05).order for _ in range(20)] == [None] * 20
    world.pid = PID
    order = world.turn(0.05).order
    assert order is not None
    assert order.thread_samples == {PID: 5}


def test_code_counts_as_seen_though_the_window_of_its_burst_goes_on() -> None:
    """So that the next burst is for what the program goes on to meanwhile."""
    world = world_of_seen_code()
    assert not world.pipeline.meets_new_code
    before, world.code = len(world.orders), 300
    world.turn(0.15)
    assert len(world.orders) == before + 1
    assert world.pipeline.meets_new_code
    taken = len(world.bursts())
    (late,) = world.waiting
    assert late.counted is not None
    burst = replace(late.counted.burst, time_seconds=world.now_seconds + 0.03)
    world.waiting = [replace(late, counted=replace(late.counted, burst=burst))]
    world.turn(0.03)
    assert len(world.bursts()) == taken  # its window has not ended
    assert not world.pipeline.runs_new_code(world.samples(0.15))
    world.code = 500
    assert world.pipeline.runs_new_code(world.samples(0.15))
    for _ in range(10):
        world.turn()
    assert len(world.bursts()) > taken


def test_samples_of_programs_that_were_left_out_are_told_as_lost() -> None:
    counts, samples = Counts(), World().samples(WINDOW_SECONDS)
    counts.add_samples(replace(samples, lost=2, left_out=3), PID)
    assert (counts.samples, counts.lost) == (len(samples), 5)


def test_what_child_processes_used_is_counted_in_cpu_time() -> None:
    """Where sampling is thinned a sample stands for more, and some tell their own time."""
    counts, own = Counts(), World().samples(WINDOW_SECONDS)
    twice = np.full(len(own), 2 * own.period_seconds)
    counts.add_samples(replace(own, weight=3.0), PID)
    counts.add_samples(replace(own, pid=own.pid + 1, cpu_seconds=twice), PID)
    assert counts.child_share == pytest.approx(2 / 5)


def test_another_program_starts_with_nothing_known() -> None:
    world = World(windows=10)
    world.run()
    assert world.ratio(1024) > 0.9  # 100 lines go round
    phases = {each.phase for each in world.windows_told()}
    world.lines, world.records = 4, []
    world.execs = [world.now_seconds + 0.055]
    world.turn()
    (executed,) = world.of(ExecRecord)
    assert (executed.command, executed.executable) == ("other", "/bin/other")
    assert world.estimator.estimate().curves == {}
    assert world.forgotten == 2
    for _ in range(10):
        world.turn()
    assert world.ratio(1024) < 0.1
    behind = world.records[world.records.index(executed) + 1 :]
    others = {each.phase for each in behind if isinstance(each, WindowRecord)}
    assert others
    assert not others & phases
    assert all(
        record.time_seconds > executed.time_seconds
        for record in behind
        if isinstance(record, BurstRecord)
    )


def test_a_burst_of_the_old_program_that_comes_late_is_dropped() -> None:
    world = World()
    world.turn()
    late = world.waiting[0]
    world.waiting, world.execs = [], [world.now_seconds + 0.05]
    world.turn()
    assert world.bursts() == []
    world.waiting = [late]
    world.turn()
    assert world.bursts() == []
    assert world.pipeline.counts.errors == {"exec": 1}
    world.turn()
    assert len(world.bursts()) == 1  # tried again


@pytest.mark.parametrize("turn_windows", [1, 3])
def test_a_schedule_is_told_of_each_window_once(turn_windows: int) -> None:
    """Whether a burst is awaited, or was just taken, or several windows have ended at once."""
    world = World(schedule_name="phase-guided")
    for _ in range(20):
        world.turn(turn_windows * WINDOW_SECONDS)
    assert len(world.orders) > 3
    schedule = world.pipeline.parts.schedule
    assert isinstance(schedule, PhaseGuided)
    told = sum(each.seen.windows for each in schedule._phases.values())
    ended = world.pipeline.counts.windows
    assert told in (ended, ended + 1)  # the next one, if it has been asked about


def test_windows_are_told_with_phases_that_there_are_still() -> None:
    """Three end in a turn, of other code each; of phases there may be one only."""
    world = World(most_phases=1)
    samples = world.samples(3 * WINDOW_SECONDS)
    codes = np.repeat(np.array([1, 2, 3], np.uint64), len(samples) // 3)
    told = world.pipeline.step(world.told(replace(samples, ip=codes), [])).windows
    assert any(assignment.merged for _, assignment in told)
    (phase,) = world.estimator.estimate().phases
    assert {assignment.phase for _, assignment in told} == {phase.id}


def test_how_soon_a_burst_is_due_is_told_when_one_has_counted() -> None:
    world = World(schedule_name="phase-guided")
    told = []
    for _ in range(20):
        counted = len(world.bursts())
        world.turn()
        has_counted = len(world.bursts()) > counted
        assert has_counted == math.isfinite(world.pipeline.windows_left)
        told.append(has_counted)
    assert any(told)
    assert not all(told)


# -- what is known from before -------------------------------------------------------------------


def known_world(**changes: Any) -> World:
    before = World(schedule_name="phase-guided")
    before.run()
    return World(schedule_name="phase-guided", before=before, **changes)


def test_a_known_program_has_its_curve_at_once_and_few_bursts() -> None:
    world = known_world()
    assert not world.pipeline.hurries
    assert world.turn(0.05).records == ()  # nothing is told before there is a window
    world.turn(0.05)
    (phase,) = world.estimator.estimate().phases
    assert (phase.bursts, phase.stored_bursts, phase.stored_age_seconds) == (0, 6, 90.0)
    assert "lru" in phase.curves
    world.run()
    fresh = World(schedule_name="phase-guided", windows=41)
    fresh.run()
    assert 1 <= len(world.orders) < len(fresh.orders) / 2
    taken = [each for each in world.bursts() if not each.is_stored]
    assert [each.window for each in world.bursts()[:6]] == [-6, -5, -4, -3, -2, -1]
    assert sum(world.pipeline.counts.ends.values()) == len(taken)
    assert world.overhead().stop_seconds == pytest.approx(0.002 * len(taken))
    assert world.pipeline.counts.store_drops == 0


@pytest.mark.parametrize(
    ("make", "stored_bursts"),
    [(World, 0), (known_world, 6), (partial(known_world, windows=80, lines=2000), 0)],
    ids=["unknown", "known", "dropped"],
)
def test_the_estimator_and_recordings_are_told_the_same(
    make: Callable[[], World], stored_bursts: int
) -> None:
    world = make()
    world.run()
    replayed = Estimator(SIZES_BYTES, 64)
    for record in world.records:
        replayed.add(record)
    replayed.finish()
    live, again = world.estimator.estimate(), replayed.estimate()
    assert np.array_equal(live.curves["lru"].miss_ratio, again.curves["lru"].miss_ratio)
    assert (live.windows, live.cpu_seconds) == (again.windows, again.cpu_seconds)
    assert live.phases[0].stored_bursts == again.phases[0].stored_bursts == stored_bursts


def test_what_does_not_hold_any_more_is_dropped_and_profiled_anew() -> None:
    world = known_world(windows=80, lines=2000)
    world.run()
    drops = world.of(StoreDropRecord)
    assert [each.phase for each in drops] == [0]
    first = next(each for each in world.bursts() if not each.is_stored)
    assert world.records.index(drops[0]) == world.records.index(first) - 1
    assert world.pipeline.counts.store_drops == 1
    (phase,) = world.estimator.estimate().phases
    assert phase.stored_bursts == 0
    assert world.ratio(1 << 14) > 0.9  # as the bursts of today say, not those of 100 lines
    assert len(world.orders) > 4


def test_another_program_in_its_place_is_known_by_ids_of_its_own() -> None:
    world = known_world(execs=[2.05])
    world.run()
    execed = next(at for at, each in enumerate(world.records) if isinstance(each, ExecRecord))
    after = world.records[execed + 1 :]
    again = [each for each in after[:6] if isinstance(each, BurstRecord)]
    windows = [each.index for each in after if isinstance(each, WindowRecord)]
    assert [each.window for each in again] == list(range(windows[0] - 6, windows[0]))
    assert all(each.is_stored and each.phase == 1 for each in again)
    assert {each.phase for each in after if isinstance(each, WindowRecord)} == {1}
    assert again[0].time_seconds == pytest.approx(2.1 - 90, abs=0.2)


def test_what_became_of_sampled_accesses_adds_up() -> None:
    """Whether or not lines of theirs are wanted."""
    world = World()
    for tally in (AddressTally(5, 1, 0, 0), AddressTally(2, 0, 40, 3)):
        world.pipeline.step(replace(world.told(world.samples(0.1), []), addresses=tally))
    assert world.pipeline.counts.addresses == AddressTally(7, 1, 40, 3)


def test_sampled_lines_belong_to_the_window_of_their_moment() -> None:
    """They wait until it has ended; those of a program that is gone are not watched."""
    world = World(watches=True, rate=1e6)
    while not (world.watch_orders or world.now_seconds > 0.9):
        world.turn()  # a rate is known
    now = world.now_seconds
    lines = [SampledLine(OpenLine((0,), 8, 1, 1), PID, now + at) for at in (0.02, 0.25)]
    world.sampled_lines = list(lines)
    while world.now_seconds < 3:
        world.turn()
    sampled = [each for each in world.of(WatchRecord) if each.is_sampled]
    windows = {each.index: each for each in world.windows_told()}
    assert len(sampled) == 2
    for line, watch in zip(lines, sorted(sampled, key=lambda each: each.window), strict=True):
        assert windows[watch.window].start_seconds <= line.time_seconds + WINDOW_SECONDS
        assert line.time_seconds <= windows[watch.window].end_seconds + PERIOD_SECONDS


def test_sampled_lines_of_a_program_that_is_gone_are_not_watched() -> None:
    world = World(watches=True, rate=1e6, execs=[0.55])
    for _ in range(5):
        world.turn()
    world.sampled_lines = [SampledLine(OpenLine((0,), 8, 1, 1), PID, 0.53)]
    while world.now_seconds < 3:
        world.turn()
    assert world.of(WatchRecord)
    assert not [each for each in world.of(WatchRecord) if each.is_sampled]


def test_lines_that_bursts_left_open_are_watched() -> None:
    world = World(watches=True, rate=1e6)
    world.run()
    watches = world.of(WatchRecord)
    assert len(watches) > 20
    assert world.pipeline.counts.watches == len(watches)
    bursts = {burst.window: burst.phase for burst in world.bursts()}
    for watch in watches:
        assert bursts[watch.window] == watch.phase
        assert watch.least_accesses == 2000
        assert watch.times_seconds[0] > 0
    overhead = world.overhead()
    hits = 4e-5 * len(watches) + 0.001 * len(world.bursts())
    assert overhead.hit_seconds == pytest.approx(hits)
    # They are asked for when few are left.
    assert {order.open_lines for order in world.orders} == {0, OPEN_LINES}


def test_what_was_given_is_told_of_the_windows_that_end_next() -> None:
    world = World(lambda order: CaptureError("none-ran", "it sleeps"))
    for resident, mapped, seconds in ((100, 100, 0.04), (130, 30, 0.05), (130, 10, 0.21)):
        world.memory = MemoryUse(resident, mapped)
        world.turn(seconds)
    world.turn(0.1)  # it is gone
    told = [record.memory for record in world.windows_told()]
    # In which of three windows it was given is not known.
    assert told == [MemoryUse(130, 46), MemoryUse(130, 47), MemoryUse(130, 47), None]


def test_memory_of_a_program_that_is_gone_is_not_that_of_the_next() -> None:
    world = World(execs=[0.15])
    world.memory = MemoryUse(100, 100)
    world.turn(0.14)
    world.memory = MemoryUse(70, 70)  # of the next one
    world.turn(0.12)
    told = [record.memory for record in world.windows_told()]
    assert told == [MemoryUse(100, 100), None, MemoryUse(70, 70)]


def test_lines_of_short_bursts_are_watched_where_they_leave_much_open() -> None:
    """Even while watches have no own CPU time of their own."""
    near, far = (
        World(
            lambda order: BURST,
            watches=True,
            rate=1e6,
            own_cpu_share=0.05,
            own_cpu_seconds=0.5,
            lines=lines,
        )
        for lines in (16, 10**9)
    )
    for world in (near, far):
        world.run()
    assert not near.of(WatchRecord)
    assert {order.open_lines for order in near.orders} == {0}
    assert far.of(WatchRecord)
    assert {order.open_accesses for order in far.orders if order.open_lines} == {SHORT_BURST}


def test_without_watchpoints_no_lines_are_asked_for() -> None:
    world = World()
    world.run()
    assert not world.of(WatchRecord)
    assert {order.open_lines for order in world.orders} == {0}


def test_refused_watches_are_told_and_bursts_go_on() -> None:
    error = CapabilityError("all breakpoints are in use", "end the other user")
    world = World(watches=True, rate=1e6, watch_error=error)
    world.run()
    assert not world.of(WatchRecord)
    assert world.pipeline.counts.errors["watch"] > 0
    assert "in use" in world.pipeline.counts.words["watch"]
    assert len(world.bursts()) > 30


def test_watches_of_another_program_are_dropped() -> None:
    world = World(watches=True, rate=1e6, execs=[1.55])
    world.run()
    at = next(i for i, record in enumerate(world.records) if isinstance(record, ExecRecord))
    later = [record for record in world.records[at:] if isinstance(record, BurstRecord)]
    since = [record for record in world.records[at:] if isinstance(record, WatchRecord)]
    assert since
    assert {watch.window for watch in since} <= {burst.window for burst in later}


def test_phases_whose_bursts_differ_get_more_of_them() -> None:
    """Two kinds of code take turns; one goes through few lines, the other now through many."""
    cost = BurstCost(stop_seconds=0.0005, stops=1, replica_cpu_seconds=0.03)
    burst = replace(BURST, accesses=100_000, cost=cost)
    world = World(lambda order: burst, schedule_name="phase-guided", own_cpu_share=0.05)
    phases: dict[int, int | None] = {}
    rng = random.Random(1)
    for window in range(100):
        world.code = 7 if window % 20 < 10 else 300
        is_next_varied = (window + 1) % 20 >= 10  # a burst comes in the next window
        goes_far = is_next_varied and rng.random() < 0.5
        world.lines = 20_000 if goes_far else 50
        world.turn()
        phases.setdefault(world.code, world.pipeline.phase)
    taken = Counter(record.phase for record in world.bursts() if record.window >= 20)
    steady, varied = (taken[phases[code] or 0] for code in (7, 300))
    assert len(set(phases.values())) == 2
    assert steady >= 2
    assert varied >= 1.5 * steady


def test_a_burst_is_awaited_until_it_has_come() -> None:
    world = World(schedule_name="phase-guided")
    assert not world.pipeline.awaits_burst
    world.turn(0.02)
    assert world.pipeline.awaits_burst
    world.answer = lambda order: CaptureError("none-ran", "it sleeps")
    while world.turn(0.01).order is not None:
        pass
    assert not world.pipeline.awaits_burst


def seeking_world(**changes: Any) -> World:
    """Code is sought, to which the thread does not come."""
    world = World(schedule_name="phase-guided", rare=9, **changes)
    while not world.turn().order or not world.orders[-1].seek_ips:
        pass
    world.waiting = []
    return world


def test_a_new_phase_ends_the_wait_for_code_that_is_sought() -> None:
    world = seeking_world()
    planner = world.pipeline.parts.planner
    assert world.turn().ends_seeking == planner.is_overdue(world.pipeline.phase)
    world.code, world.rare = 300, None
    assert any(world.turn().ends_seeking for _ in range(3))
    assert not planner.is_overdue(world.pipeline.phase)
    world.waiting = [CaptureResult(None, CaptureError("not-reached", "it did not come"))]
    first = world.turn()
    assert not first.ends_seeking
    assert first.order is not None
    assert not first.order.seek_ips


def test_new_code_ends_the_wait_for_code_that_is_sought_and_gets_a_burst_at_once() -> None:
    """Before a window of it has ended: it may be over then."""
    world = seeking_world(tells_code=True)
    before, windows = len(world.orders), world.pipeline.counts.windows
    world.code, world.rare, world.period_seconds = 300, None, 0.002
    assert world.turn(0.08).ends_seeking
    assert world.pipeline.hurries
    world.waiting = [CaptureResult(None, CaptureError("not-reached", "it did not come"))]
    order = world.turn(0.01).order
    assert world.pipeline.counts.windows == windows
    assert len(world.orders) == before + 1
    assert order is not None
    assert (order.seek_ips, order.delay_seconds) == ((), 0.0)


def test_a_burst_that_is_overdue_ends_the_wait_for_code_that_is_sought() -> None:
    world = seeking_world()
    planner = world.pipeline.parts.planner
    while not world.turn().ends_seeking:
        assert not planner.is_overdue(world.pipeline.phase)
    assert planner.is_overdue(world.pipeline.phase)
    world.waiting = [CaptureResult(None, CaptureError("not-reached", "it did not come"))]
    order = world.turn().order
    assert order is not None
    assert not order.seek_ips


def test_accesses_from_elsewhere_leave_what_is_known_and_what_was_spent() -> None:
    burst = replace(BURST, cost=replace(COST, stop_seconds=0.02))
    world = World(lambda order: burst, schedule_name="phase-guided", watches=True)
    for _ in range(10):
        world.turn()
    pipeline, parts = world.pipeline, world.pipeline.parts
    taken, phase, spent = len(world.bursts()), pipeline.phase, world.overhead().spent_share
    curve = world.estimator.estimate().curves["lru"].miss_ratio
    assert taken
    schedule = make_schedule("phase-guided", random.Random(3), window_seconds=WINDOW_SECONDS)
    planner = Planner(schedule, world.ledger, BurstLimits(4000, 0.005, seeks=False))
    pipeline.change(schedule, planner, stops_nothing=True)
    assert schedule.balance_seconds == pytest.approx(parts.schedule.balance_seconds)
    assert world.overhead().spent_share == spent
    assert np.array_equal(world.estimator.estimate().curves["lru"].miss_ratio, curve)
    world.answer, world.orders = lambda order: replace(BURST, cost=BurstCost()), []
    for _ in range(100):
        world.turn()
    assert pipeline.phase == phase
    assert len(world.bursts()) > taken + 1
    assert world.orders
    assert all(not order.seek_ips for order in world.orders)
    assert pipeline.counts.windows > 100


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_orders_tell_who_is_sampled_for_a_part_of_the_time(share: float) -> None:
    world = World(sampled_share=share)
    world.run()
    assert {order.is_thinned for order in world.orders} == {share < 1}
