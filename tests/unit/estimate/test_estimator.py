"""The estimator: against brute force, against itself replayed, and what it may never do."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented import SIZES_BYTES, burst_record, header, instructions_of, timed, window_record
from numpy.typing import NDArray

from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import (
    BurstRecord,
    EstimatorEvent,
    ExecRecord,
    MergeRecord,
    StoreDropRecord,
    WatchRecord,
    WindowRecord,
    code_bytes,
)
from memsampd.estimate.records import Estimate, Totals, WindowEstimate
from memsampd.exporters.recording import RecordingWriter, read_recording
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction
from memsampd.sampler.rates import UNKNOWN_RATE, CodeRate
from memsampd.sampler.records import Spacing

BINS = 16


def window(index: int, phase: int = 0, code: NDArray[np.float64] | None = None) -> WindowRecord:
    record = window_record(index, phase)
    return record if code is None else msgspec.structs.replace(record, code=code_bytes(code))


def window_apart(index: int, seconds: float) -> WindowRecord:
    """One of windows that end so far apart."""
    return msgspec.structs.replace(window(index), end_seconds=seconds * index)


def burst(
    at: int, phase: int = 0, code: NDArray[np.float64] | None = None, rate: float | None = 1e8
) -> BurstRecord:
    record = burst_record(phase, at, 500, rate)
    return record if code is None else msgspec.structs.replace(record, code=code_bytes(code))


def watch(at: int, phase: int = 0, hits: int = 3, pause_seconds: float = 0.05) -> WatchRecord:
    """A watch in the latest windows, touched at even pauses."""
    moments = tuple(pause_seconds * hit for hit in range(hits + 2))
    return WatchRecord(
        window=at,
        phase=phase,
        tid=1,
        least_accesses=300,
        times_seconds=tuple(0.1 * at + each for each in moments),
        cpu_seconds=moments,
        patience_seconds=0.5,
        end="returned" if hits > 1 else "patience",
        words=4,
        touched=2,
        hit_words=(0,) * hits,
    )


def estimator_of(settle: int = 32, waiting: int = 512, bursts: int = 128) -> Estimator:
    return Estimator(
        SIZES_BYTES, 64, settle_windows=settle, waiting_windows=waiting, remembered_bursts=bursts
    )


def fed(
    estimator: Estimator, events: Iterable[EstimatorEvent], *, finish: bool = True
) -> Estimator:
    for event in events:
        estimator.add(event)
    if finish:
        estimator.finish()
    return estimator


def told(events: Sequence[EstimatorEvent], *, finish: bool = True, settle: int = 32) -> Estimate:
    return fed(estimator_of(settle), events, finish=finish).estimate()


def told_of_sizes(
    sizes_bytes: Sequence[int], events: Sequence[EstimatorEvent], *, finish: bool = True
) -> Estimate:
    estimator = Estimator(np.array(sizes_bytes, np.int64), 64, (StatStack(),))
    return fed(estimator, events, finish=finish).estimate()


def windows_of(
    events: Sequence[EstimatorEvent], sizes_bytes: NDArray[np.int64] = SIZES_BYTES
) -> dict[int, WindowEstimate]:
    """What each window is said to have been once all is known."""
    known: dict[int, WindowEstimate] = {}
    estimator = Estimator(
        sizes_bytes, 64, (StatStack(),), tell_window=lambda each: known.update({each.index: each})
    )
    fed(estimator, events)
    return known


def same(one: Estimate, other: Estimate) -> bool:
    """Bit for bit."""
    return repr_of(one) == repr_of(other)


def repr_of(value: object) -> object:
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tobytes())
    if isinstance(value, msgspec.Struct):
        return [repr_of(each) for each in msgspec.structs.astuple(value)]
    if isinstance(value, dict):
        return [(key, repr_of(each)) for key, each in value.items()]
    if isinstance(value, tuple):
        return [repr_of(each) for each in value]
    return value


def stored(
    at: int, phase: int = 0, code: NDArray[np.float64] | None = None, rate: float | None = 1e8
) -> BurstRecord:
    """A burst from before the attach, so many windows ago."""
    record = burst(at, phase, code, rate)
    return msgspec.structs.replace(record, window=-at, time_seconds=-60.0 * at, is_stored=True)


codes = st.sampled_from([40 * np.eye(BINS)[row] + 10 * np.eye(BINS)[row // 2] for row in range(6)])


@st.composite
def histories(draw: st.DrawFn) -> list[EstimatorEvent]:
    """Windows of some phases, bursts late by some windows, merges, programs that follow."""
    events: list[EstimatorEvent] = [
        stored(at, draw(st.integers(0, 3)), draw(codes))
        for at in range(draw(st.integers(0, 8)), 0, -1)
    ]
    live = [0, 1, 2, 3]
    for index in range(draw(st.integers(1, 60))):
        phase, code = draw(st.sampled_from(live)), draw(codes)
        if not draw(st.integers(0, 9)):
            events.append(StoreDropRecord(phase=phase, window=index))
        events.append(window(index, phase, code))
        what = draw(st.integers(0, 19))
        if what < 6:
            rate = draw(st.sampled_from([None, 1e8, 3e9]))
            events.append(burst(max(index - draw(st.integers(0, 3)), 0), phase, code, rate))
        elif what in (8, 9, 10):
            events.append(watch(index, phase, draw(st.integers(0, 3))))
        elif what == 6 and len(live) > 1:
            gone = live.pop(draw(st.integers(0, len(live) - 1)))
            events.append(MergeRecord(gone=gone, into=live[0]))
        elif what == 7:
            live = [0, 1, 2, 3]
            events.append(ExecRecord(time_seconds=1.0, command="next", executable="/bin/next"))
    return events


@settings(deadline=None, max_examples=25)
@given(histories(), st.integers(4, 12))
def test_a_replayed_recording_says_what_was_said_live(
    tmp_path_factory: pytest.TempPathFactory, events: list[EstimatorEvent], bursts: int
) -> None:
    """After each event: what was asked meanwhile must not matter either."""
    path = tmp_path_factory.mktemp("replay") / "x"
    live, said = estimator_of(8, 20, bursts), []
    writer = RecordingWriter(path, header())
    for event in events:
        writer.write(event)
        live.add(event)
        said.append(live.estimate())
    writer.close()
    replayed = estimator_of(8, 20, bursts)
    for event, expected in zip(read_recording(path).events, said, strict=True):
        replayed.add(event)
        assert same(replayed.estimate(), expected)


@settings(deadline=None, max_examples=25)
@given(histories(), st.integers(2, 40))
def test_it_does_not_matter_how_often_it_is_asked(events: list[EstimatorEvent], every: int) -> None:
    """Windows are shared out together: as many as have come since somebody asked."""
    often, seldom = estimator_of(8, 20), estimator_of(8, 20)
    for at, event in enumerate(events):
        often.add(event)
        seldom.add(event)
        now = often.estimate()
        if at % every == 0:
            assert close(seldom.estimate(), now)
    assert close(seldom.estimate(), often.estimate())


def figures_of(totals: Totals) -> NDArray[np.float64]:
    """Accesses, misses and lines written back, shape (3, policies, s)."""
    misses, written_back = (
        np.array([lines[policy] for policy in ("lru", "random")])
        for lines in (totals.misses, totals.written_back)
    )
    return np.array([np.full_like(misses, totals.accesses), misses, written_back])


@settings(deadline=None, max_examples=25)
@given(histories())
def test_what_is_said_is_possible(events: list[EstimatorEvent]) -> None:
    estimator = Estimator(SIZES_BYTES, 64, settle_windows=8, remembered_bursts=6)
    before = nothing = figures_of(estimator.estimate().totals)
    for event in [*events, None]:
        if event is None:
            estimator.finish()
        else:
            estimator.add(event)
        if isinstance(event, ExecRecord):
            before = nothing
        estimate = estimator.estimate()
        totals = estimate.totals
        for misses in totals.misses.values():
            assert np.all(np.diff(misses) <= 1e-6 * totals.accesses)
        now = figures_of(totals)
        accesses, misses, written_back = now - before
        rounding = 1e-9 * totals.accesses
        assert np.all(accesses >= 0)
        assert np.all((misses >= 0) & (misses <= accesses + rounding))
        assert np.all((written_back >= 0) & (written_back <= misses + rounding))
        before = now
        if estimate.phases:
            assert sum(phase.weight for phase in estimate.phases) == pytest.approx(1)
            assert estimate.cpu_seconds == pytest.approx(0.1 * estimate.windows)
        assert -1e-9 <= estimate.unknown_cpu_seconds <= estimate.cpu_seconds + 1e-9
        for curves in (estimate.curves, *(phase.curves for phase in estimate.phases)):
            for curve in curves.values():
                assert np.all(np.diff(curve.miss_ratio) <= 0)
                assert np.all((curve.low >= 0) & (curve.low <= curve.miss_ratio))
                assert np.all((curve.miss_ratio <= curve.high) & (curve.high <= 1))


@given(events=histories(), phase=st.integers(0, 3))
def test_of_some_phases_it_says_what_it_says_of_all(
    events: list[EstimatorEvent], phase: int
) -> None:
    estimator = fed(estimator_of(), events, finish=False)
    every, some = estimator.estimate(), estimator.estimate([phase])
    wanted = tuple(each for each in every.phases if each.id == phase)
    assert same(some, msgspec.structs.replace(every, phases=wanted, curves={}, rate=UNKNOWN_RATE))


def test_windows_are_shared_out_as_by_brute_force() -> None:
    """Bin by bin, each among all bursts that ran it, nearby ones before others."""
    random = np.random.default_rng(5)
    code = random.multinomial(50, random.dirichlet(np.ones(BINS), 20)).astype(float)
    ran = random.multinomial(1000, random.dirichlet(np.ones(BINS), 4)).astype(float)
    at, rates = (2, 7, 8, 17), (1e8, 4e8, 2e8, 3e8)
    events: list[EstimatorEvent] = []
    for index in range(20):
        events.append(window(index, 0, code[index]))
        if index in at:
            mine = at.index(index)
            events.append(burst(index, 0, ran[mine], rates[mine]))
    known = windows_of(events)
    bursts = [event for event in events if isinstance(event, BurstRecord)]
    expected_rates = np.array(rates)
    curves = _burst_curves(bursts)
    background = 1 / 16384
    for index in range(20):
        distance = np.abs(np.array(at) - index)
        weights = 1 / (1 + (distance / (distance.min() + 1)) ** 2)
        ran_bin = ran / ran.sum(axis=1, keepdims=True) + background
        shares = np.zeros(len(at))
        for bin in range(BINS):
            share = weights * ran_bin[:, bin] ** 2
            shares += code[index, bin] / code[index].sum() * share / share.sum()
        made = 0.1 * shares * expected_rates
        accesses, misses = float(made.sum()), made @ curves
        assert known[index].accesses == pytest.approx(accesses, rel=1e-4)
        np.testing.assert_allclose(
            known[index].curves["lru"].miss_ratio, misses / accesses, rtol=1e-4
        )


def _burst_curves(bursts: Sequence[BurstRecord]) -> NDArray[np.float64]:
    """All see equally far: none goes on as another one."""
    survival = [SurvivalFunction.from_histogram(each.histogram()) for each in bursts]
    return np.array([StatStack().curve(each, SIZES_BYTES).miss_ratio for each in survival])


def test_code_that_no_burst_saw_is_told_as_unknown_until_one_does() -> None:
    code = np.eye(BINS) * 50
    events: list[EstimatorEvent] = [window(0, 0, code[0]), burst(0, 0, code[0])]
    events += [window(1 + index, 1, code[1]) for index in range(3)]
    before = told(events, finish=False)
    assert before.unknown_cpu_seconds == pytest.approx(0.3)
    assert before.phases[1].curves == {}
    whole = before.curves["lru"]
    assert np.all(whole.high - whole.low >= 0.7)
    after = told([*events, burst(2, 1, code[1])], finish=False)
    assert after.unknown_cpu_seconds == 0
    assert np.all(after.curves["lru"].high - after.curves["lru"].low < 0.7)


def test_bursts_of_another_phase_speak_for_its_code() -> None:
    code = np.eye(BINS) * 50
    events: list[EstimatorEvent] = [window(0, 0, code[0]), burst(0, 0, code[0])]
    events.append(window(1, 1, code[0]))
    assert told(events).unknown_cpu_seconds == 0


def test_a_burst_after_a_window_speaks_for_it_as_long_as_it_is_not_settled() -> None:
    events: list[EstimatorEvent] = [window(0), burst(0)]
    events += [window(index) for index in range(1, 6)]
    late = burst(5, rate=4e8)
    soon, never = (told([*events, late], settle=n) for n in (32, 2))
    assert soon.totals.accesses > never.totals.accesses


def test_counters_leave_the_latest_windows_to_the_next_bursts() -> None:
    """What these correct of a window is not worked off in later ones if it just ended."""
    events: list[EstimatorEvent] = [window_apart(0, 0.25), burst(0, rate=4e8)]
    events += [window_apart(index, 0.25) for index in range(1, 10)]
    late = burst(9, rate=3.6e8)
    before, after = (told(each, finish=False).totals for each in (events, [*events, late]))
    whole = told(events).totals
    assert before.accesses == pytest.approx(0.6 * whole.accesses)
    assert before.misses["lru"] == pytest.approx(0.6 * whole.misses["lru"])
    assert after.accesses == before.accesses
    assert before.accesses < told([*events, late]).totals.accesses < whole.accesses
    assert told(events[:5], finish=False).totals.accesses == 0


def test_counters_of_a_target_that_idles_wait_for_one_window() -> None:
    events: list[EstimatorEvent] = [window_apart(0, 60.0), burst(0)]
    events += [window_apart(index, 60.0) for index in range(1, 4)]
    waits = told(events, finish=False).totals.accesses
    assert waits == pytest.approx(0.75 * told(events).totals.accesses)


def test_parts_of_a_burst_are_one_burst() -> None:
    parts = [msgspec.structs.replace(burst(0), part=part) for part in (0, 1)]
    (phase,) = told([window(0), *parts]).phases
    assert phase.bursts == 1
    assert phase.sampled_accesses == 2 * parts[0].accesses


def test_another_program_begins_anew() -> None:
    exec_record = ExecRecord(time_seconds=0.2, command="b", executable="/b")
    assert same(
        told([window(0), burst(0), window(1), exec_record, window(2, 3)]), told([window(2, 3)])
    )


def test_memory_does_not_grow_with_the_run() -> None:
    random = np.random.default_rng(1)
    codes = random.multinomial(50, random.dirichlet(np.ones(4 * BINS), 8)).astype(float)
    estimator = Estimator(SIZES_BYTES, 64, remembered_bursts=16)
    sizes = []
    tracemalloc.start()
    try:
        for index in range(1800):
            phase = index // 40 % 8
            estimator.add(window(index, phase, codes[phase]))
            if index % 10 == 0:
                estimator.add(burst(index, phase, codes[phase]))
            if index >= 600 and index % 300 == 0:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[-1] < 1.1 * sizes[0]


def test_bounds_hold_the_truth_of_an_invented_run() -> None:
    """Bursts of two kinds at random, of which the mean is known."""
    held = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        kinds = random.integers(0, 2, 200)
        events: list[EstimatorEvent] = []
        for index in range(200):
            events.append(window(index))
            if random.random() < 0.1:
                events.append(burst_record(int(kinds[index]) * 2, index, 3000, 1e8))
                events[-1] = msgspec.structs.replace(events[-1], phase=0)
        if not any(isinstance(event, BurstRecord) for event in events):
            continue
        curve = told(events).curves["lru"]
        exact = [
            _burst_curves([burst_record(kind * 2, 1000 + n, 3000) for n in range(4)]).mean(axis=0)
            for kind in (0, 1)
        ]
        truth = np.average(exact, axis=0, weights=np.bincount(kinds, minlength=2))
        held.append((curve.low <= truth) & (truth <= curve.high))
    assert np.mean(held) > 0.9


def test_an_empty_burst_counts_and_says_nothing(tmp_path: Path) -> None:
    empty = msgspec.structs.replace(
        burst(0), accesses=0, bins=b"", reuses=b"", censored=b"", timed=timed(1e8)
    )
    estimate = told([window(0), empty])
    assert [phase.bursts for phase in estimate.phases] == [1]
    assert estimate.curves == {}


def memoryless(at: int, phase: int = 0, code: NDArray[np.float64] | None = None) -> BurstRecord:
    """A burst of a loop on registers."""
    return msgspec.structs.replace(
        burst(at, phase, code, None),
        accesses=0,
        rows=0,
        writes=0,
        instructions=500_000,
        bins=b"",
        reuses=b"",
        censored=b"",
    )


def test_code_without_accesses_is_known_to_make_none() -> None:
    estimate = told([window(0), memoryless(0), window(1), window(2)])
    assert estimate.unknown_cpu_seconds == 0
    assert estimate.rate.accesses_per_cpu_second == 0
    assert [phase.rate.accesses_per_cpu_second for phase in estimate.phases] == [0]
    assert (estimate.totals.accesses, estimate.curves) == (0, {})
    assert not any(np.any(misses) for misses in estimate.totals.misses.values())


def test_code_without_accesses_leaves_that_of_others_as_it_was() -> None:
    """Though the samples of both fall on much the same code."""
    busy, idle = 40 * np.eye(BINS)[1] + 30 * np.eye(BINS)[2], 40 * np.eye(BINS)[1]
    busy_alone = told([window(0, 0, busy), burst(0, 0, busy)])
    events: list[EstimatorEvent] = [window(0, 0, busy), burst(0, 0, busy)]
    events += [window(1, 1, idle), memoryless(1, 1, idle)]
    first, second = told(events).phases
    alone = busy_alone.phases[0]
    assert alone.rate.accesses_per_cpu_second is not None
    assert first.rate.accesses_per_cpu_second is not None
    assert 0.5 < first.rate.accesses_per_cpu_second / alone.rate.accesses_per_cpu_second <= 1
    assert first.curves["lru"].miss_ratio == pytest.approx(alone.curves["lru"].miss_ratio)
    assert told(events).unknown_cpu_seconds == 0
    assert second.rate.accesses_per_cpu_second is not None
    assert second.rate.accesses_per_cpu_second < 0.5 * first.rate.accesses_per_cpu_second


def test_code_without_accesses_is_shown_no_curve_of_other_code() -> None:
    busy, idle = 40 * np.eye(BINS)[1], 40 * np.eye(BINS)[2]
    first, second = told(
        [window(0, 0, busy), burst(0, 0, busy), window(1, 1, idle), memoryless(1, 1, idle)]
    ).phases
    assert first.curves
    assert (second.rate.accesses_per_cpu_second, second.curves) == (0, {})


def test_bursts_without_accesses_are_remembered_in_bounded_memory() -> None:
    events: list[EstimatorEvent] = []
    for index in range(60):
        code = 40 * np.eye(BINS)[index % 3]
        events.append(window(index, index % 3, code))
        events.append((burst if index % 2 else memoryless)(index, index % 3, code))
    estimate = fed(estimator_of(4, 8, 4), events).estimate()
    assert estimate.unknown_cpu_seconds == 0
    assert np.isfinite(estimate.totals.accesses)
    assert estimate.totals.accesses > 0


def test_a_burst_of_another_kind_is_not_continued_by_its_phase() -> None:
    """The same code on a working set that its lines never come back from in a short burst."""
    hits = ReuseHistogram.from_lines(np.arange(20_000, dtype=np.uint64) % np.uint64(30))
    new = ReuseHistogram.from_lines(np.arange(2000, dtype=np.uint64))
    events: list[EstimatorEvent] = [window(0), _with(burst(0), hits)]
    events += [window(1), _with(burst(1), new)]
    known = windows_of(events)
    curve = known[1].curves["lru"]
    assert curve.high[-1] > 0.2  # some of it may miss in the largest cache
    assert curve.low[-1] < 0.01


def short_and_long() -> tuple[ReuseHistogram, ReuseHistogram]:
    """A loop over 5000 lines: 1000 accesses see none return, 200,000 all of them."""
    loop = np.arange(100_000, dtype=np.uint64) % np.uint64(5000)
    mixed = np.stack([loop, loop % np.uint64(8)], axis=1).ravel()  # half of them return soon
    return ReuseHistogram.from_lines(mixed[:1000]), ReuseHistogram.from_lines(mixed)


@pytest.mark.parametrize("is_like", [True, False])
def test_short_bursts_go_on_as_later_ones_of_like_code(is_like: bool) -> None:
    code, (few, many) = 40 * np.eye(BINS), short_and_long()
    short = _with(burst(0, 0, code[0]), few)
    long = _with(burst(1, 0, code[0 if is_like else 1]), many)
    events: list[EstimatorEvent] = [window(0, 0, code[0]), short, window(1, 0, code[0])]
    events.append(msgspec.structs.replace(long, window=1))
    curve = windows_of(events)[0].curves["lru"]
    size = int(np.searchsorted(SIZES_BYTES, 64 * 6000))
    assert curve.low[0] > 0.4
    assert (curve.high[size] < 0.1) == is_like


def test_a_burst_too_short_to_tell_anything_counts_as_little() -> None:
    code = np.zeros(BINS)
    code[3] = 50.0
    long = burst_of(8, 0)
    short = msgspec.structs.replace(
        burst_of(8, 0, accesses=40),
        instructions=long.instructions // 100,
        code=code_bytes(code + np.roll(code, 1)),
    )
    events: list[EstimatorEvent] = [window(index, 0, code) for index in range(2)]
    assert told([*events, long, short]).curves["lru"].miss_ratio[-1] < 0.02
    assert told([*events, short]).curves["lru"].miss_ratio[-1] > 0.5  # nothing else is known


def test_no_burst_goes_on_as_one_of_another_phase_that_is_dropped() -> None:
    code, (few, many) = 40 * np.eye(BINS)[0], short_and_long()
    dropped = StoreDropRecord(phase=1, window=0)
    usual: list[EstimatorEvent] = [window(0, 0, code), _with(burst(0, 0, code), few)]
    known: list[EstimatorEvent] = [_with(stored(1, 1, code), many), *usual]
    assert not close(told(known, finish=False), told(usual, finish=False))
    one, other = told([*known, dropped], finish=False), told(usual, finish=False)
    assert close(msgspec.structs.replace(one, totals=other.totals), other)


def test_windows_tell_the_rate_of_like_code_that_was_not_timed() -> None:
    """The same code on a large and on a small array; only the former's burst was timed."""
    code, slow, fast = 40 * np.eye(BINS)[0], 1.2e8, 2.5e9
    large = _with(burst(0, 0, code, slow), ReuseHistogram.from_lines(np.arange(500, dtype="u8")))
    few = ReuseHistogram.from_lines(np.arange(500, dtype=np.uint64) % np.uint64(2))
    events: list[EstimatorEvent] = [
        window(0, 0, code),
        msgspec.structs.replace(large, timed_code=3),
        window(1, 0, code),
        _with(burst(1, 0, code, None), few),
    ]
    for index, rate in ((2, slow), (3, fast)):
        told_rate = (CodeRate(3, rate, 5),)
        events.append(msgspec.structs.replace(window(index, 0, code), rates=told_rate))
    known = windows_of(events)
    assert [known[at].accesses for at in (2, 3)] == pytest.approx([0.1 * slow, 0.1 * fast])
    assert known[2].curves["lru"].miss_ratio[0] > 0.9
    assert known[3].curves["lru"].miss_ratio[0] < 0.1


def test_how_much_was_accessed_does_not_depend_on_the_sizes_that_are_asked_for() -> None:
    """Two timings of one code contradict each other unless it missed unlike, at whatever size."""
    code = 40 * np.eye(BINS)[0]
    events: list[EstimatorEvent] = []
    for index, (rate, lines) in enumerate(((1e8, 40), (5e8, 400))):
        again = np.arange(20_000, dtype=np.uint64) % np.uint64(lines)
        record = _with(burst(index, 0, code, rate), ReuseHistogram.from_lines(again))
        events += [window(index, 0, code), msgspec.structs.replace(record, timed_code=3)]
    accesses = told_of_sizes([1 << 20], events).totals.accesses
    # Only the smaller size shows that they missed unlike.
    assert told_of_sizes([1 << 13, 1 << 20], events).totals.accesses == accesses
    assert accesses == pytest.approx(0.1 * (1e8 + 5e8), rel=0.3)  # both timings count


def test_among_bursts_of_like_code_those_speak_whose_data_lay_as_far_apart() -> None:
    code = np.eye(BINS)[3] * 50
    near, far = (
        msgspec.structs.replace(burst_of(lines, at), spacing=Spacing(octaves, 0.2))
        for lines, at, octaves in ((100, 0, 2.0), (4000, 1, 9.0))
    )
    spacings = (2.0, 9.0, 8.6, 2.3, None, 5.5)
    events: list[EstimatorEvent] = []
    for index, octaves in enumerate(spacings):
        spacing = None if octaves is None else Spacing(octaves, 0.2)
        events.append(msgspec.structs.replace(window(index, 0, code), spacing=spacing))
    events = [*events[:2], near, far, *events[2:]]
    known = windows_of(events)
    size = int(np.searchsorted(SIZES_BYTES, 2 * 100 * 64))
    ratios = [known[at].curves["lru"].miss_ratio[size] for at in range(len(spacings))]
    small, large = ratios[0], ratios[1]
    assert large - small > 0.5
    assert ratios[2] == pytest.approx(large, abs=0.05)
    assert ratios[3] == pytest.approx(small, abs=0.05)
    # Where it is not known, both speak.
    assert small + 0.1 < ratios[4] < large - 0.1
    # Where it is like neither, they speak of data between both: too many for that size, and few
    # enough for one in which those of the second do not find room.
    assert ratios[5] == pytest.approx(large, abs=0.05)
    more = int(np.searchsorted(SIZES_BYTES, 32 * 100 * 64))
    assert known[1].curves["lru"].miss_ratio[more] - known[5].curves["lru"].miss_ratio[more] > 0.5
    # What is said of a size does not depend on which others are asked for.
    some = windows_of(events, SIZES_BYTES[1:12:5])
    for index, window_estimate in some.items():
        expected = known[index].curves["lru"].miss_ratio[1:12:5]
        assert window_estimate.curves["lru"].miss_ratio.tolist() == expected.tolist()


def counted(record: BurstRecord, histogram: ReuseHistogram) -> BurstRecord:
    """The same burst with other distances."""
    bins, reuses, censored = histogram.to_sparse()
    return msgspec.structs.replace(
        record,
        accesses=histogram.accesses,
        bins=bins.astype("<i4").tobytes(),
        reuses=reuses.astype("<i8").tobytes(),
        censored=censored.astype("<i8").tobytes(),
    )


def _with(record: BurstRecord, histogram: ReuseHistogram) -> BurstRecord:
    """The same with as many instructions an access."""
    instructions = round(record.instructions / record.accesses * histogram.accesses)
    return msgspec.structs.replace(counted(record, histogram), instructions=instructions)


# -- bursts from before the attach ---------------------------------------------------------------


def close(one: Estimate, other: Estimate) -> bool:
    """But for the order in which figures were added."""
    return np.allclose(
        _figures(repr_numbers(one)), _figures(repr_numbers(other)), rtol=1e-9, atol=1e-9
    )


def repr_numbers(estimate: Estimate) -> list[object]:
    return [
        estimate.cpu_seconds,
        estimate.unknown_cpu_seconds,
        estimate.totals.accesses,
        estimate.rate.accesses_per_cpu_second or 0.0,
        [
            [
                phase.windows,
                phase.bursts,
                phase.stored_bursts,
                phase.sampled_accesses,
                phase.weight,
                phase.write_share,
                [[curve.miss_ratio, curve.low, curve.high] for curve in phase.curves.values()],
            ]
            for phase in estimate.phases
        ],
        [[curve.miss_ratio, curve.low, curve.high] for curve in estimate.curves.values()],
    ]


def _figures(value: object) -> NDArray[np.float64]:
    if isinstance(value, list):
        parts = [_figures(each) for each in value]
        return np.concatenate(parts) if parts else np.empty(0)
    return np.atleast_1d(np.asarray(value, np.float64)).ravel()


def test_a_known_phase_has_its_curve_at_its_first_window() -> None:
    code = np.eye(BINS)[3] * 50
    fresh = told([window(0, 0, code), burst(0, 0, code)], finish=False)
    known = estimator_of()
    known.add(stored(1, 0, code))
    assert known.estimate().phases == ()  # nothing was met yet
    known.add(window(0, 0, code))
    (phase,) = known.estimate().phases
    assert (phase.bursts, phase.stored_bursts, phase.stored_age_seconds) == (0, 1, 60.0)
    assert known.estimate().unknown_cpu_seconds == 0
    curve, expected = phase.curves["lru"], fresh.phases[0].curves["lru"]
    assert np.allclose(curve.miss_ratio, expected.miss_ratio, atol=0.05)


@settings(deadline=None, max_examples=40)
@given(histories(), st.integers(1, 6))
def test_what_is_dropped_has_never_been(events: list[EstimatorEvent], count: int) -> None:
    """As long as no window has been settled by it: then what was said of that one stays."""
    usual = [
        event
        for event in events
        if not isinstance(event, ExecRecord | StoreDropRecord | MergeRecord)
        and not (isinstance(event, BurstRecord) and event.is_stored)
    ][:10]
    with_stored, without = (estimator_of(100, 200, 64) for _ in range(2))
    for at in range(count, 0, -1):
        with_stored.add(stored(at, at % 4, np.eye(BINS)[at % BINS] * 9))
    left = {0, 1, 2, 3}
    for event in usual:
        if isinstance(event, BurstRecord) and event.phase in left:
            with_stored.add(StoreDropRecord(phase=event.phase, window=event.window))
            left.remove(event.phase)
        with_stored.add(event)
        without.add(event)
    for phase in range(4):  # after it all bursts are modelled by what is known now
        with_stored.add(StoreDropRecord(phase=phase, window=0))
        without.add(StoreDropRecord(phase=phase, window=0))
    # Counters never run backwards: what was counted by bursts that were dropped stays counted.
    one, other = with_stored.estimate(), without.estimate()
    assert close(msgspec.structs.replace(one, totals=other.totals), other)
    assert np.array_equal(with_stored.seen_code(), without.seen_code())


def burst_of(
    lines: int,
    at: int,
    phase: int = 0,
    *,
    is_stored: bool = False,
    bin: int = 3,
    accesses: int = 4000,
) -> BurstRecord:
    """A burst that goes through so many lines again and again."""
    histogram = ReuseHistogram.from_lines(np.arange(accesses, dtype=np.uint64) % np.uint64(lines))
    return msgspec.structs.replace(
        counted(burst(0, phase), histogram),
        window=at,
        is_stored=is_stored,
        code=code_bytes(np.eye(BINS)[bin] * 50),
    )


def test_the_first_bursts_may_contradict_what_was_stored() -> None:
    estimator = estimator_of()
    assert not estimator.contradicts(burst_of(1000, 0))
    for at in (-3, -2, -1):
        estimator.add(burst_of(100 + at, at, is_stored=True))
    assert not estimator.contradicts(burst_of(99, 0))
    assert estimator.contradicts(burst_of(1000, 0))
    assert not estimator.contradicts(burst_of(1000, 0, phase=1))
    assert not estimator.contradicts(burst_of(1000, 0, bin=4))  # of other code
    assert estimator.contradicts(msgspec.structs.replace(burst_of(1000, 0), code=b""))
    for at in range(4):
        estimator.add(window(at))
        estimator.add(burst_of(99, at))
    assert not estimator.contradicts(burst_of(1000, 4))  # that is drift, and no longer our matter


def test_rates_of_another_run_dispute_nothing() -> None:
    """The machine is slower today: bursts of today say so by themselves."""
    code = np.eye(BINS)[3] * 50
    alike = {"instructions": instructions_of(500, 3e8)}
    before = [stored(at, 0, code, 1e9) for at in range(8, 0, -1)]
    events: list[EstimatorEvent] = [msgspec.structs.replace(each, **alike) for each in before]
    today = msgspec.structs.replace(burst(0, 0, code, 1e8), **alike)
    events += [window(0, 0, code), today]
    (phase,) = told(events).phases
    rate = phase.rate.accesses_per_cpu_second
    assert rate is not None
    assert rate < 3e8


def streaming() -> BurstRecord:
    """A burst through lines that never return."""
    return counted(burst(0), ReuseHistogram.from_lines(np.arange(200_000, dtype=np.uint64)))


def after_settled_windows() -> Estimator:
    """One that was told such a burst, and windows since of which most are settled."""
    sizes_bytes = np.array([1 << 20, 64 << 20, 1 << 30], np.int64)
    estimator = Estimator(sizes_bytes, 64, (StatStack(),), settle_windows=2)
    events: list[EstimatorEvent] = [window(0), streaming(), *map(window, range(1, 60))]
    return fed(estimator, events, finish=False)


def test_bounds_of_settled_windows_follow_what_is_learned_later() -> None:
    estimator = after_settled_windows()
    before, counted = estimator.estimate().curves["lru"], estimator.estimate().totals.accesses
    for at in range(200):
        estimator.add(watch(at, hits=4))
    after = estimator.estimate()
    curve = after.curves["lru"]
    assert (before.low[1], before.high[2]) == (0, 1)
    assert curve.low[1] > 0.7  # as in all windows that are not settled
    assert curve.high[2] < before.miss_ratio[2] + 0.2
    # What was estimated of them stays, and what was counted.
    assert curve.miss_ratio == pytest.approx(before.miss_ratio, abs=0.05)
    assert after.totals.accesses == counted


def test_watches_tell_what_bursts_do_not() -> None:
    """Of a burst through 2000 lines that never return, all return after so long."""
    watches = [watch(at, hits=4) for at in range(200)]
    # 0.05 s at the rate of the burst: 5 million accesses.
    sizes_bytes = [1 << 20, 64 << 20, 1 << 30]
    estimates = [
        told_of_sizes(sizes_bytes, [window(0), streaming(), *watches[:n]], finish=False)
        for n in (0, 3, 4, 200)
    ]
    without, few, some, many = (estimate.curves["lru"] for estimate in estimates)
    assert without.low.tolist()[1:] == [0, 0]
    assert few.low.tolist() == without.low.tolist()
    assert few.high.tolist() == without.high.tolist()
    assert few.miss_ratio.tolist() == without.miss_ratio.tolist()
    # Four of them are believed as much as how the curve goes on by itself.
    assert some.miss_ratio[2] == pytest.approx(without.miss_ratio[2] / 2)
    assert many.miss_ratio[:2].tolist() == pytest.approx([1, 1], abs=0.01)
    assert many.low[1] > 0.7  # 64 MiB is a million lines: all of them are missed
    assert many.miss_ratio[2] < 0.01  # 16 million lines: none is
    assert many.high[2] < 0.2


def test_it_tells_how_much_the_bursts_of_phases_differ() -> None:
    estimator = estimator_of()
    assert estimator.scatter() == ({}, {})
    for index in range(8):
        estimator.add(window(index, index % 2))
    for at in range(8):  # those of phase 1 go at very different rates
        estimator.add(burst(at, at % 2, rate=1e8 * (1 + 3 * (at % 4 == 3))))
    scatter, bands = estimator.scatter()
    assert set(scatter) == set(bands) == {0, 1}
    assert scatter[1] > 2 * scatter[0]
    assert all(0 <= each <= 1 for each in bands.values())
    estimator.add(MergeRecord(gone=0, into=1))
    assert set(estimator.scatter()[0]) == {1}


def test_stack_distances_of_a_burst_reach_its_curve_and_old_records_do_without() -> None:
    turns = np.tile(np.concatenate([np.arange(3000) % 500, 1000 + np.arange(3000) % 8]), 20)
    seen = ReuseHistogram.from_lines(turns.astype(np.uint64))
    assert seen.stacks is not None
    record = msgspec.structs.replace(
        counted(burst(0), seen),
        sampled_reuses=seen.stacks.reuse.astype("<u4").tobytes(),
        sampled_stacks=seen.stacks.stack.astype("<u4").tobytes(),
    )
    old = msgspec.structs.replace(record, sampled_reuses=b"", sampled_stacks=b"")
    curves = [
        StatStack().curve(survival, SIZES_BYTES).miss_ratio
        for survival in (
            SurvivalFunction.from_histogram(seen),
            msgspec.structs.replace(SurvivalFunction.from_histogram(seen), stacks=None),
        )
    ]
    assert np.abs(curves[0] - curves[1]).max() > 0.2
    for told_of, expected in zip((record, old), curves, strict=True):
        estimator = fed(estimator_of(), [window(0), told_of], finish=False)
        assert estimator.last_burst_ratios() == pytest.approx(expected, abs=1e-12)


def test_at_the_end_the_latest_watches_count_too() -> None:
    estimator = after_settled_windows()
    widths = []
    for at in range(15):  # from the twelfth on they are looked at when there are 16
        estimator.add(watch(at, hits=4))
        curve = estimator.estimate().curves["lru"]
        widths.append(float(curve.high[2] - curve.low[2]))
    assert widths[11] == widths[14]
    estimator.finish()
    curve = estimator.estimate().curves["lru"]
    assert curve.high[2] - curve.low[2] < widths[14] - 1e-4  # all are of one burst, and tell little
    estimator.finish()  # nothing has come since
    assert estimator.estimate().curves["lru"].high[2] == curve.high[2]


def test_watches_may_come_before_the_first_burst() -> None:
    sampled = [msgspec.structs.replace(watch(at, hits=4), is_sampled=True) for at in range(20)]
    orders: list[list[EstimatorEvent]] = [[*sampled, streaming()], [streaming(), *sampled]]
    early, late = (
        told_of_sizes([1 << 20, 64 << 20], [window(0), *events]).curves["lru"] for events in orders
    )
    assert early.low == pytest.approx(late.low, abs=1e-3)
    assert early.high == pytest.approx(late.high, abs=1e-3)
