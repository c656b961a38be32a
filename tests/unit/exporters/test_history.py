from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented import curve_of, make_snapshot
from msgspec.structs import replace

from memsampd.estimate.records import PhaseEstimate
from memsampd.exporters.history import (
    KEPT_TIERS,
    LONGEST_SECONDS,
    MAX_PHASES,
    SLOTS,
    TIERS,
    History,
    Slice,
    Tier,
)
from memsampd.exporters.past import EMPTY, OTHERS, pack_past, unpack_past
from memsampd.exporters.snapshot import Snapshot

BASE = make_snapshot(1)
PHASE = BASE.estimate.phases[0]
# Seconds until the next snapshot, and the CPU time of each phase meanwhile.
STEPS = st.lists(
    st.tuples(
        st.floats(0.2, 30.0), st.dictionaries(st.integers(0, 9), st.floats(0.0, 4.0), max_size=4)
    ),
    min_size=1,
    max_size=60,
)


def seen(time_seconds: float, used: dict[int, float]) -> Snapshot:
    """A snapshot in which phases have used so much CPU time so far."""
    phases: tuple[PhaseEstimate, ...] = tuple(
        replace(PHASE, id=id, cpu_seconds=seconds) for id, seconds in sorted(used.items())
    )
    estimate = replace(BASE.estimate, phases=phases, cpu_seconds=sum(used.values()))
    return replace(BASE, time_seconds=time_seconds, estimate=estimate)


def played(steps: list[tuple[float, dict[int, float]]]) -> tuple[History, dict[int, float], float]:
    """A history of these steps, what ran since the first snapshot, and the last time."""
    history, now_seconds = History(), 1000.0
    used = {id: 0.0 for _, ran in steps for id in ran}
    history.add(seen(now_seconds, used))
    for pause_seconds, ran in steps:
        now_seconds += pause_seconds
        used = {id: seconds + ran.get(id, 0.0) for id, seconds in used.items()}
        history.add(seen(now_seconds, used))
    return history, used, now_seconds


def by_phase(part: Slice) -> dict[int, float]:
    sums = part.cpu_seconds.sum(axis=0).tolist()
    return {id: seconds for id, seconds in zip(part.phases.tolist(), sums, strict=True) if seconds}


@given(STEPS, st.integers(1, 50))
def test_all_that_ran_is_told_once_however_few_points_are_asked_for(
    steps: list[tuple[float, dict[int, float]]], points: int
) -> None:
    history, used, last = played(steps)
    part = history.read(0.0, last, points)
    assert 1 <= len(part.start_seconds) <= points
    told = by_phase(part)
    assert sum(told.values()) == pytest.approx(sum(used.values()), rel=1e-4, abs=1e-6)
    if OTHERS not in told:
        kept = {id: seconds for id, seconds in used.items() if seconds > 1e-3}
        assert {id: told.get(id, 0.0) for id in kept} == pytest.approx(kept, rel=1e-3)


@given(STEPS, st.integers(2, 50))
def test_columns_ascend_in_equal_steps_and_hold_the_stretch(
    steps: list[tuple[float, dict[int, float]]], points: int
) -> None:
    history, _, last = played(steps)
    part = history.read(0.0, last, points)
    gaps = np.diff(part.start_seconds) / part.step_seconds
    assert np.all(gaps > 0)
    assert np.allclose(gaps, np.round(gaps))
    assert part.start_seconds[0] <= 1000.0
    assert part.start_seconds[-1] <= last < part.start_seconds[-1] + part.step_seconds + 1e-9
    assert np.all(part.cpu_seconds >= 0)


def test_what_ran_between_two_snapshots_is_spread_over_the_time_between_them() -> None:
    history = History()
    history.add(seen(100.5, {0: 0.0}))
    history.add(seen(102.5, {0: 2.0}))
    part = history.read(0.0, 102.5, 100)
    assert part.start_seconds.tolist() == [100.0, 101.0, 102.0]
    assert part.cpu_seconds[:, 0].tolist() == pytest.approx([0.5, 1.0, 0.5])


def test_of_the_first_snapshot_nobody_knows_when_it_ran() -> None:
    history = History()
    history.add(seen(100.0, {0: 3600.0}))
    assert by_phase(history.read(0.0, 100.0, 10)) == {}


def test_a_long_pause_is_not_filled() -> None:
    history = History()
    history.add(seen(0.0, {0: 0.0}))
    history.add(seen(5000.0, {0: 1.0}))
    part = history.read(0.0, 5000.0, 2000)
    assert by_phase(part) == pytest.approx({0: 1.0})
    assert part.start_seconds[1] >= 5000 - LONGEST_SECONDS - part.step_seconds


def test_a_day_is_kept_in_bounded_memory_and_older_things_are_forgotten() -> None:
    history = History()
    for second in range(0, 100_000, 5):
        history.add(seen(float(second), {0: second / 2, 1: second / 4}))
    day = history.read(0.0, 1e5, 300)
    assert len(day.start_seconds) <= 300
    span = day.start_seconds[-1] + day.step_seconds - day.start_seconds[0]
    step, rows = TIERS[-1]
    assert 86_000 <= span <= step * rows + 2 * day.step_seconds
    assert by_phase(day)[0] == pytest.approx(span / 2, rel=0.02)
    last_minutes = history.read(1e5 - 600, 1e5, 700)
    assert last_minutes.step_seconds == TIERS[0][0]
    hours = history.read(1e5 - 9000, 1e5, 2000)
    assert hours.step_seconds == TIERS[1][0]


def test_light_phases_of_a_row_are_told_together() -> None:
    tier = Tier(1.0, 4)
    tier.add(0.0, 0.0, {id: 1.0 + id for id in range(SLOTS + 3)})
    part = tier.read(0.0, 0.5, 5)
    told = by_phase(part)
    assert len(told) == SLOTS
    assert told[OTHERS] == 1 + 2 + 3 + 4
    assert sum(told.values()) == sum(1 + id for id in range(SLOTS + 3))


def test_a_merged_phase_takes_its_past_along() -> None:
    history = History()
    history.add(seen(0.0, {0: 0.0, 1: 0.0, 2: 0.0}))
    history.add(seen(1.0, {0: 0.5, 1: 0.4, 2: 0.1}))
    history.add(seen(2.0, {0: 0.5, 1: 1.0}))  # 2 went into 1, which ran for 0.5 s more
    assert by_phase(history.read(0.0, 2.0, 10)) == pytest.approx({0: 0.5, 1: 1.0})


def test_phases_that_went_into_different_ones_between_two_snapshots_invent_no_time() -> None:
    history = History()
    history.add(seen(0.0, {1: 0.0, 2: 0.0, 3: 0.0, 5: 0.0}))
    history.add(seen(100.0, {1: 10.0, 2: 10.0, 3: 90.0, 5: 50.0}))
    history.add(seen(101.0, {1: 100.5, 2: 60.5}))  # 3 went into 1, 5 into 2; each ran for 0.5 s
    assert by_phase(history.read(0.0, 101.0, 10)) == pytest.approx({1: 100.5, 2: 60.5})


@given(st.data())
def test_whatever_goes_into_what_no_time_is_invented(data: st.DataObject) -> None:
    history = History()
    used = dict.fromkeys(range(6), 0.0)
    history.add(seen(0.0, used))
    for second in range(1, data.draw(st.integers(1, 8)) + 1):
        used = {id: at + data.draw(st.floats(0.0, 90.0)) for id, at in used.items()}
        while len(used) > 1 and data.draw(st.booleans()):
            gone, into = data.draw(st.permutations(sorted(used)))[:2]
            used[into] += used.pop(gone)
        if data.draw(st.booleans()):
            used[10 + second] = data.draw(st.floats(0.0, 9.0))
        history.add(seen(float(second), used))
    told = by_phase(history.read(0.0, 10.0, 20))
    assert sum(told.values()) == pytest.approx(sum(used.values()), rel=1e-4, abs=1e-6)


def test_the_only_phase_that_went_into_a_younger_one_is_not_told_twice() -> None:
    history = History()
    history.add(seen(0.0, {0: 0.0}))
    history.add(seen(1.0, {0: 1.0}))
    history.add(seen(2.0, {1: 2.0}))
    assert by_phase(history.read(0.0, 2.0, 10)) == pytest.approx({1: 2.0})


def test_another_program_does_not_inherit_the_phases_of_the_old_one() -> None:
    history = History()
    history.add(seen(0.0, {0: 0.0, 1: 0.0}))
    history.add(seen(1.0, {0: 0.5, 1: 0.5}))
    history.add(seen(2.0, {2: 0.25}))
    assert by_phase(history.read(0.0, 2.0, 10)) == pytest.approx({0: 0.5, 1: 0.5, 2: 0.25})
    longer = seen(20.0, {3: 12.0})
    history.add(replace(longer, target=replace(longer.target, command="next")))
    told = by_phase(history.read(0.0, 20.0, 30))
    assert told == pytest.approx({0: 0.5, 1: 0.5, 2: 0.25, 3: 12.0})


def test_time_that_runs_backwards_changes_nothing_before() -> None:
    history = History()
    for time_seconds, used in ((10.0, 0.0), (11.0, 1.0), (9.0, 1.5), (12.0, 2.0)):
        history.add(seen(time_seconds, {0: used}))
    part = history.read(0.0, 12.0, 100)
    assert np.all(np.diff(part.start_seconds) > 0)
    assert by_phase(part) == pytest.approx({0: 2.0})


def test_curves_are_weighted_by_accesses_with_the_phases_as_known_now() -> None:
    history = History()
    history.add(seen(0.0, {0: 0.0, 1: 0.0}))
    snapshot = seen(0.5, {0: 0.3, 1: 0.1})
    slow, fast = snapshot.estimate.phases
    fast = replace(
        fast,
        rate=replace(fast.rate, accesses_per_cpu_second=9e8),
        curves={"lru": curve_of(2)},
    )
    estimate = replace(snapshot.estimate, phases=(slow, fast))
    history.add(replace(snapshot, estimate=estimate))
    part = history.read(0.0, 0.5, 10)
    (curve,) = history.curves(part)
    assert curve is not None
    weight = np.array([0.3 * 1e8, 0.1 * 9e8])
    both = np.array([slow.curves["lru"].miss_ratio, fast.curves["lru"].miss_ratio])
    assert curve.miss_ratio == pytest.approx(np.average(both, axis=0, weights=weight))


def test_what_has_no_curve_widens_the_bounds_and_is_counted() -> None:
    history = History()
    history.add(seen(0.0, {0: 0.0, 1: 0.0}))
    snapshot = seen(0.5, {0: 0.3, 1: 0.1})
    first, second = snapshot.estimate.phases
    estimate = replace(snapshot.estimate, phases=(first, replace(second, curves={})))
    history.add(replace(snapshot, estimate=estimate))
    part = history.read(0.0, 0.5, 10)
    assert history.unknown_cpu_seconds(part).tolist() == pytest.approx([0.1])
    (curve,) = history.curves(part)
    assert curve is not None
    assert np.all(curve.high >= 0.25)
    assert np.all(curve.low <= 0.75 * first.curves["lru"].low + 1e-6)


def test_an_idle_stretch_has_columns_without_a_curve() -> None:
    history = History()
    for second in range(4):
        history.add(seen(float(second), {0: 1.0}))
    part = history.read(0.0, 3.0, 10)
    assert len(part.start_seconds) == 4
    assert part.cpu_seconds.sum() == 0
    assert history.curves(part) == [None] * 4


def test_phases_known_are_bounded() -> None:
    history = History()
    for second in range(MAX_PHASES + 50):
        history.add(seen(float(second), {second: 1.0, second + 1: 0.0}))
    assert len(history._known) <= MAX_PHASES


def test_before_the_first_snapshot_there_is_nothing_to_read() -> None:
    part = Tier(1.0, 4).read(0.0, 1.0, 5)
    assert part.cpu_seconds.size == len(part.start_seconds) == 0


# -- what outlives memsampd ----------------------------------------------------------------------


def restored(history: History, now_seconds: float, ids: dict[int, int]) -> History:
    """Another one that begins with what was kept of this one."""
    past = history.past()
    assert past is not None
    after = History()
    after.restore(unpack_past(pack_past(past), now_seconds).renamed(ids))
    return after


@given(STEPS)
def test_what_is_kept_is_told_again_and_goes_on(
    steps: list[tuple[float, dict[int, float]]],
) -> None:
    kept, used = History(KEPT_TIERS), {id: 0.0 for _, ran in steps for id in ran}
    now_seconds = 1000.0
    kept.add(seen(now_seconds, used))
    for pause_seconds, ran in steps:
        now_seconds += pause_seconds
        used = {id: seconds + ran.get(id, 0.0) for id, seconds in used.items()}
        kept.add(seen(now_seconds, used))
    until_seconds = now_seconds
    after = restored(kept, now_seconds, {id: id for id in used})
    assert after.stored_until_seconds == until_seconds
    before = by_phase(after.read(0.0, after.last_seconds, 300))
    assert sum(before.values()) == pytest.approx(sum(used.values()), rel=1e-4)
    # A new session's phases have used nothing yet; then they go on.
    now_seconds += 5.0
    after.add(seen(now_seconds, dict.fromkeys(used, 0.0)))
    after.add(seen(now_seconds + 1, dict.fromkeys(used, 0.5)))
    told = by_phase(after.read(0.0, after.last_seconds, 300))
    assert sum(told.values()) == pytest.approx(sum(used.values()) + 0.5 * len(used), rel=1e-4)


def test_a_restored_day_is_read_where_it_is_and_what_came_since_in_seconds() -> None:
    kept = History(KEPT_TIERS)
    for minute in range(1440):
        kept.add(seen(1000.0 + 60 * minute, {0: 30.0 * minute}))
    now_seconds = kept.last_seconds
    after = restored(kept, now_seconds, {0: 0})
    for second in range(60):
        after.add(seen(now_seconds + second, {0: 0.5 * second}))
    day = after.read(0.0, after.last_seconds, 2000)
    assert by_phase(day)[0] == pytest.approx(30.0 * 1439 + 0.5 * 59, rel=0.01)
    hour = after.read(now_seconds - 1800, after.last_seconds, 2000)
    assert hour.step_seconds == 8.0
    assert after.read(now_seconds + 10, after.last_seconds, 2000).step_seconds == 1.0


def test_phases_that_are_not_known_again_are_told_apart_and_drawn_as_they_were_known() -> None:
    history, _, now_seconds = played([(1.0, {0: 0.5}), (1.0, {1: 0.5})])
    after = restored(history, now_seconds, {1: 7})
    part = after.read(0.0, now_seconds, 10)
    assert sorted(by_phase(part)) == [EMPTY - 1, 7]
    curves = after.curves(part)
    assert any(curve is not None for curve in curves)
    assert after.unknown_cpu_seconds(part).sum() == 0


def test_of_other_cache_sizes_or_lines_curves_are_forgotten() -> None:
    history, _, _ = played([(1.0, {0: 0.5})])
    past = history.past()
    assert past is not None
    curve = past.known[0].curve
    assert curve is not None
    fitting = past.fitting(curve.sizes_bytes, curve.line_bytes)
    assert fitting.known[0].curve is curve
    assert past.fitting(curve.sizes_bytes[1:], curve.line_bytes).known[0].curve is None
    assert past.fitting(curve.sizes_bytes, 2 * curve.line_bytes).known[0].curve is None


@given(st.integers(0, 10_000), st.integers(1, 255), st.booleans())
def test_a_damaged_past_is_refused_or_harmless(at: int, change: int, cut: bool) -> None:
    history, _, now_seconds = played([(1.0, {0: 0.5, 1: 0.2}), (30.0, {1: 0.5})])
    past = history.past()
    assert past is not None
    frame = bytearray(pack_past(past))
    at %= len(frame)
    frame[at] ^= change
    try:
        told = unpack_past(bytes(frame[:at] if cut else frame), now_seconds).renamed({})
        told = told.fitting(BASE.estimate.sizes_bytes, 64)
    except ValueError:
        return
    after = History()
    after.restore(told)
    after.add(seen(now_seconds + 1, {0: 0.0}))
    after.curves(after.read(0.0, after.last_seconds, 300))


def test_a_past_that_has_not_come_yet_is_refused() -> None:
    history, _, now_seconds = played([(1.0, {0: 0.5})])
    past = history.past()
    assert past is not None
    with pytest.raises(ValueError, match="not come yet"):
        unpack_past(pack_past(past), now_seconds - 10)
