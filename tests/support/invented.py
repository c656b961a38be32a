"""An invented run: a recording and a snapshot, made through the real classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import BurstRecord, EstimatorEvent, MergeRecord, WindowRecord
from memsampd.estimate.records import Estimate, PhaseEstimate, Totals
from memsampd.exporters.recording import HeaderRecord, Recording, RecordingWriter
from memsampd.exporters.snapshot import (
    BurstTally,
    NodeStatus,
    NodeTarget,
    Overhead,
    Snapshot,
    TargetInfo,
)
from memsampd.machines.machine_file import MemoryPeak, Peak
from memsampd.models.combine import combine
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.records import MissRatioCurve
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction
from memsampd.sampler.rates import AccessRate, TimedStretch
from memsampd.sampler.records import Burst, BurstCost, BurstEnd

SIZES_BYTES = np.array([1 << octave for octave in range(10, 27)], dtype=np.int64)
CACHES = {"L1d": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}
TARGET = TargetInfo(pid=4242, start_ticks=99, command="sqlite3", executable="/usr/bin/sqlite3")


OVERHEAD = Overhead(
    target_cpu_seconds=6.0,
    stop_seconds=0.01,
    longest_stop_seconds=0.004,
    hit_seconds=0.02,
    sampling_seconds=0.03,
    budget_share=0.02,
    taken_cpu_seconds=0.01,
    spent_share=0.005,
    own_cpu_seconds=0.4,
    replica_cpu_seconds=0.3,
    own_cpu_share=0.05,
    own_cpu_granted_seconds=1.0,
    own_cpu_waited_seconds=0.0,
    waits_for_own_cpu=False,
)


def stream(phase: int, accesses: int, seed: int) -> NDArray[np.uint64]:
    """Lines touched by an invented program: hot lines, a working set, and a scan."""
    random = np.random.default_rng([phase, seed])
    hot = random.zipf(1.5, accesses).clip(max=1 << 14)
    workset = random.integers(0, (200, 3000, 12000, 40000)[phase % 4], accesses) + (1 << 20)
    scan = np.arange(accesses) // 8 + (1 << 30)
    kind = random.choice(
        3,
        accesses,
        p=((0.8, 0.19, 0.01), (0.6, 0.36, 0.04), (0.5, 0.2, 0.3), (0.7, 0.2, 0.1))[phase % 4],
    )
    return np.choose(kind, [hot, workset, scan]).astype(np.uint64)


def timed(rate: float) -> TimedStretch:
    """A stretch that was timed at so many accesses per CPU second."""
    return TimedStretch(round(rate * 0.01), 0.01, "held")


def recording_of(
    windows: Sequence[WindowRecord],
    bursts: Sequence[BurstRecord] = (),
    merges: Sequence[MergeRecord] = (),
) -> Recording:
    """Bursts come after their windows, merges at the end."""
    events: list[EstimatorEvent] = []
    for window in windows:
        events += [window, *(burst for burst in bursts if burst.window == window.index)]
    return Recording(header(), [*events, *merges])


def instructions_of(accesses: int, rate: float | None) -> int:
    """As many as make a model of cores expect about this rate of accesses a CPU second."""
    return round(accesses * (3.0 if rate is None else max(8e9 / rate, 1.0)))


def burst_record(
    phase: int, window: int, accesses: int = 4000, rate: float | None = None
) -> BurstRecord:
    lines = stream(phase, accesses, window)
    burst = Burst(
        ip=np.zeros(accesses, np.uint64),
        address=lines * np.uint64(64),
        size_bytes=np.full(accesses, 8, np.uint16),
        is_write=np.arange(accesses) % 4 == 0,
        pid=TARGET.pid,
        tid=TARGET.pid + 1,
        time_seconds=0.0,
        instructions=instructions_of(accesses, rate),
        prefetches=2,
        end=BurstEnd.SYSCALL,
        end_detail="read",
        cost=BurstCost(stop_seconds=0.001, stops=1, replica_cpu_seconds=0.01),
    )
    histogram = ReuseHistogram.from_lines(lines)
    record = BurstRecord.of(
        burst,
        histogram,
        window=window,
        phase=phase,
        time_seconds=window * 0.1,
        writes=int(np.count_nonzero(burst.is_write)),
    )
    return record if rate is None else msgspec.structs.replace(record, timed=timed(rate))


def window_record(index: int, phase: int) -> WindowRecord:
    return WindowRecord(
        index=index,
        start_seconds=index * 0.1,
        end_seconds=index * 0.1 + 0.098,
        cpu_seconds=0.1,
        phase=phase,
        samples=100,
        predicted_phase=phase,
    )


def header(command: str = "sqlite3") -> HeaderRecord:
    return HeaderRecord(
        memsampd_version="0.1.0",
        target=TargetInfo(TARGET.pid, TARGET.start_ticks, command, TARGET.executable),
        backend={"branches": "task-clock", "accesses": "replica", "clock": "in-target"},
        line_bytes=64,
        start_unix_seconds=1.7e9,
        cache_sizes_bytes=CACHES,
        machine={"model": "invented"},
        config={"budget_share": 0.02},
    )


def curve_of(phase: int) -> MissRatioCurve:
    histogram = ReuseHistogram.from_lines(stream(phase, 4000, 0))
    return StatStack().curve(SurvivalFunction.from_histogram(histogram), SIZES_BYTES)


def nothing_known(sizes_bytes: NDArray[np.int64]) -> Estimate:
    """What is known before the first window."""
    return Estimator(sizes_bytes, 64).estimate()


def make_snapshot(
    phases: int = 3,
    *,
    alive: bool = True,
    pid: int = TARGET.pid,
    trouble: str = "",
    counters: bool = False,
) -> Snapshot:
    """The last phase is the lightest and has no burst."""
    weights = np.arange(phases, 0, -1) / (phases * (phases + 1) / 2)
    views = tuple(
        PhaseEstimate(
            id=id,
            windows=10 * (phases - id),
            cpu_seconds=float(phases - id),
            weight=float(weights[id]),
            bursts=2,
            sampled_accesses=4000,
            censored_share=0.01 * (id + 1),
            write_share=0.25,
            rate=AccessRate(1e8 * (id + 1), 0.1, "in-target"),
            curves={"lru": curve_of(id)} if id < phases - 1 or phases == 1 else {},
            instructions=1e9 * (phases - id) if counters else 0.0,
            cycles_per_instruction=0.5 * (id + 1) if counters else None,
        )
        for id in range(phases)
    )
    overall = combine((phase.weight, phase.curves.get("lru")) for phase in views)
    estimate = Estimate(
        windows=60,
        cpu_seconds=6.0,
        unknown_cpu_seconds=1.5,
        phases=views,
        curves={} if overall is None else {"lru": overall},
        rate=AccessRate(1.5e8, 0.05, "bursts"),
        rate_known_share=0.75,
        totals=Totals(
            0.0 if overall is None else 9e8,
            {} if overall is None else {"lru": 9e8 * overall.miss_ratio},
            {} if overall is None else {"lru": 0.25 * 9e8 * overall.miss_ratio},
        ),
        sizes_bytes=SIZES_BYTES,
    )
    return Snapshot(
        target=TargetInfo(pid, 99, "sqlite3", "/usr/bin/sqlite3"),
        alive=alive,
        time_seconds=12.5,
        backend={"branches": "task-clock", "accesses": "replica"},
        window=None,
        phase=1,
        predicted_phase=0,
        prediction_accuracy=0.9,
        estimate=estimate,
        cache_sizes_bytes=CACHES,
        samples=6000,
        lost=7,
        throttled=1,
        burst_ends={"full": 3, "syscall": 4},
        errors={"target is not running": 2},
        overhead=OVERHEAD,
        tally=BurstTally(7, 2, 30, 20, 19, 900, 100),
        trouble=trouble,
        memory_peak=MemoryPeak(Peak(2e10, 1e10), Peak(3e10, 2e10)),
    )


def make_node_status() -> NodeStatus:
    """A daemon that observes one process and cannot observe another."""
    other = TargetInfo(5, 7, "nginx", "/usr/sbin/nginx")
    return NodeStatus(
        version="0.1.0",
        pid=2,
        started_unix_seconds=1.7e9,
        time_seconds=12.5,
        targets=(
            NodeTarget(TARGET, "profiled", "databases", burst_share=1.0),
            NodeTarget(other, "failed", "web", "nginx is traced by gdb", "end gdb"),
        ),
        left_out=3,
        own_cpu_seconds=4.0,
        own_cpu_share=0.012,
        own_cpu_budget_share=0.02,
        stop_seconds=0.5,
        stop_share=0.001,
        stop_budget_share=0.02,
        rss_bytes=90 << 20,
        open_descriptors=40,
        threads=5,
        loop_seconds=0.01,
        ended_targets=1,
    )


def write_recording(path: Path, accesses: int = 4000, command: str = "sqlite3") -> Path:
    """Phases 0, 1, 2 with bursts, 3 without, 4 merged into 1; all of these are timed."""
    writer = RecordingWriter(path, header(command))
    order = [0] * 20 + [1] * 15 + [2] * 10 + [0] * 12 + [3] * 5 + [4] * 8 + [2] * 10
    for index, phase in enumerate(order):
        writer.write(window_record(index, phase))
        if index in (3, 25, 38, 50, 64):
            rate = 2e8 if phase == 4 else 1e8 * (phase + 1)
            writer.write(burst_record(phase, index, accesses, rate))
    writer.write(MergeRecord(gone=4, into=1))
    writer.publish(make_snapshot(alive=False))
    writer.close()
    return path
