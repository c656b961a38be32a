"""Bursts that are remembered, and two that become one."""

from __future__ import annotations

import numpy as np
import pytest

from memsampd.estimate.memory import BurstMemory
from memsampd.estimate.window_rates import RatesByCode
from memsampd.sampler.rates import CodeRate
from memsampd.sampler.records import Spacing

CODE = np.eye(4) * 10


def test_two_old_ones_of_like_code_become_one() -> None:
    memory = BurstMemory(4, 2, capacity=6)
    for window, row in enumerate((0, 1, 0, 2, 3, 3)):
        memory.add(
            window, 0, CODE[row], np.array([0.1 * window, 0.0]), 1e8 * (window + 1), 0.1, 1e8, True
        )
    at, joined = memory.add(6, 0, CODE[1], np.array([0.9, 0.0]), 1e9, 0.4, 1e9, False)
    assert joined == (0, 2)
    assert at == 0
    assert memory.count == 6
    assert memory.bursts.tolist() == [1, 1, 2, 1, 1, 1]
    assert memory.window.tolist() == [6, 1, 1, 3, 4, 5]
    assert memory.curves[2, 0] == pytest.approx(0.1)
    assert memory.rates[2] == pytest.approx(np.sqrt(3) * 1e8)


def test_a_timed_burst_corrects_the_model_for_its_code_only() -> None:
    """It missed that one by half: so it does others of this code, but for a doubt."""
    memory = BurstMemory(4, 1)
    memory.add(0, 0, CODE[0], np.zeros(1), 1e8, 0.05, 2e8, True)
    memory.add(1, 1, CODE[0], np.zeros(1), 4e8, 0.7, 4e8, False)
    memory.add(2, 0, CODE[1], np.zeros(1), 2e8, 0.7, 2e8, False)
    rates, is_rated = memory.expected_rates()
    assert rates == pytest.approx([1e8, 4e8 * 0.5 ** (1 / 1.25), 2e8])
    assert is_rated.tolist() == [True, True, False]


def test_a_burst_that_was_not_timed_has_the_code_of_the_likest_one() -> None:
    memory = BurstMemory(4, 1)
    half = CODE[0] + 0.5 * CODE[1]
    for code, timed_code in ((CODE[0], 7), (half, 8), (CODE[2], 9)):
        memory.add(0, 0, code, np.zeros(1), 1e8, 0.05, 1e8, True, timed_code)
    for code in (CODE[0], half, CODE[3], np.zeros(4)):
        memory.add(1, 0, code, np.zeros(1), 1e8, 0.7, 1e8, False)
    assert memory.like_code().tolist() == [-1, -1, -1, 7, 8, -1, -1]


def test_many_timed_bursts_leave_no_doubt() -> None:
    memory = BurstMemory(4, 1, capacity=64)
    for at in range(60):
        memory.add(at, 0, CODE[0], np.zeros(1), 1e8, 0.05, 2e8, True)
    memory.add(60, 0, CODE[0], np.zeros(1), 4e8, 0.7, 4e8, False)
    assert memory.expected_rates()[0][-1] == pytest.approx(2e8, rel=0.01)


def test_one_that_stands_for_many_corrects_the_model_as_one_does() -> None:
    """Memory may be faster today than on the average of days."""

    def corrected(old: int) -> float:
        memory = BurstMemory(4, 1, capacity=6)
        for at in range(old):
            memory.add(at, 0, CODE[0], np.zeros(1), 1.6e8, 0.05, 2e8, True)
        memory.add(old, 0, CODE[0], np.zeros(1), 2.8e8, 0.05, 2e8, True)
        at, _ = memory.add(old + 1, 0, CODE[0], np.zeros(1), 2e8, 0.7, 2e8, False)
        return float(memory.expected_rates()[0][at])

    assert corrected(old=40) == pytest.approx(corrected(old=4))


def test_one_timing_of_many_tries_is_not_taken_whole() -> None:
    """Its registers may have been steady by chance; if half of the bursts were timed, not."""
    memory = BurstMemory(4, 1, capacity=8)
    memory.add(0, 0, CODE[0], np.zeros(1), 1e8, 0.05, 5e8, True)
    for at in range(1, 5):
        memory.add(at, 0, CODE[0], np.zeros(1), 5e8, 0.7, 5e8, False)
    rates, is_rated = memory.expected_rates()
    expected = [5e8 * (1 / 5) ** (1 / 4), *4 * [5e8 * (1 / 5) ** (1 / 4.25)]]
    assert rates == pytest.approx(expected)
    assert is_rated.all()
    for at in range(5, 8):
        memory.add(at, 0, CODE[0], np.zeros(1), 1e8, 0.05, 5e8, True)
    assert memory.expected_rates()[0][[0, 5, 6, 7]] == pytest.approx(4 * [1e8])


def test_likeness_is_by_code_and_by_phase_where_that_is_not_known() -> None:
    memory = BurstMemory(4, 1)
    half = CODE[0] + CODE[1]
    for phase, code in ((0, CODE[0]), (1, half), (1, np.zeros(4)), (2, CODE[2])):
        memory.add(0, phase, code, np.zeros(1), 1e8, 0.7, 1e8, False)
    alike = memory.likeness([CODE[0], half, CODE[3], np.zeros(0)], [1, 1, 1, 1])
    root = np.sqrt(0.5)
    expected = [[1, root, 1, 0], [root, 1, 1, 0], [0, 0, 1, 0], [0, 1, 1, 0]]
    np.testing.assert_allclose(alike, expected, atol=1e-12)
    expected = [[1, root, 0, 0], [root, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(memory.likenesses(), expected, atol=1e-12)


def test_what_bursts_of_other_code_differ_by_is_no_scatter() -> None:
    usual = np.array([0.01])
    for codes, expected in (
        ((0, 0, 0), (0.04**2 / 2 + 0.06**2 / 2 + 0.01 / 3) / (2 + 1 / 3)),
        ((0, 0, 1), (0.04**2 / 2 + 0.01 / 2) / (1 + 1 / 2)),
        ((0, 1, 0), 0.01),
    ):
        memory = BurstMemory(4, 1)
        for at, (code, ratio) in enumerate(zip(codes, (0.1, 0.14, 0.2), strict=True)):
            memory.add(at, 0, CODE[code], np.array([ratio]), 1e8, 0.1, 1e8, True)
        assert memory.scatter(0, usual) == pytest.approx(expected)


def test_where_no_code_is_known_each_has_its_own_rate() -> None:
    memory = BurstMemory(4, 1)
    for rate in (1e8, 4e8):
        memory.add(0, 0, np.zeros(4), np.zeros(1), rate, 0.1, rate, True)
    assert memory.expected_rates()[0] == pytest.approx([1e8, 4e8])


def test_the_same_code_may_go_at_two_rates() -> None:
    """On two working sets, which miss unlike: what was measured is not corrected."""
    memory = BurstMemory(4, 1)
    for rate, missed in ((1e8, 0.5), (4e8, 0.3)):
        memory.add(0, 0, CODE[0], np.array([missed]), rate, 0.01, 5e8, True, 5)
    assert memory.expected_rates()[0] == pytest.approx([1e8, 4e8])
    assert memory.timed_code.tolist() == [5, 5]


def test_timings_that_contradict_each_other_do_not_count() -> None:
    """A lone slower one never; the fastest if it is confirmed. Else the model stands in."""
    memory = BurstMemory(4, 1)
    for rate, code in ((1e8, 0), (4e8, 0), (2e8, 1), (2.3e8, 1)):
        memory.add(0, 0, CODE[code], np.zeros(1), rate, 0.01, 2e9, True, 5 + code)
    assert memory.doubts().trusted.tolist() == [False, False, True, True]
    rates, is_rated = memory.expected_rates()
    assert rates == pytest.approx([2e9, 2e9, 2e8, 2.3e8])
    assert is_rated.tolist() == [False, False, True, True]
    assert memory.timed_code.tolist() == [-1, -1, 6, 6]
    memory.add(1, 0, CODE[0], np.zeros(1), 4.2e8, 0.01, 2e9, True, 5)
    assert memory.doubts().trusted.tolist() == [False, True, True, True, True]
    assert memory.expected_rates()[0][[1, 4]] == pytest.approx([4e8, 4.2e8])
    assert memory.timed_code.tolist() == [-1, -1, 6, 6, -1]
    memory.set_curve(0, np.array([0.2]))  # it went over other data, but is far too slow for those
    assert memory.doubts().trusted.tolist() == [False, True, True, True, True]
    assert memory.timed_code.tolist() == [-1, 5, 6, 6, 5]


def test_timings_contradict_each_other_as_long_as_both_missed_alike() -> None:
    memory = BurstMemory(4, 1)
    for rate in (1e8, 4e8):
        memory.add(0, 0, CODE[0], np.zeros(1), rate, 0.01, 5e8, True, 5)
    assert memory.doubts().trusted.tolist() == [False, True]
    assert memory.timed_code.tolist() == [-1, -1]
    memory.set_curve(0, np.array([0.2]))  # it went over other data, as turns out
    assert memory.doubts().trusted.all()
    assert memory.timed_code.tolist() == [5, 5]


@pytest.mark.parametrize(("model", "trusted"), [(1.1e9, True), (1.3e9, False), (1.4e8, True)])
def test_of_two_that_contradict_each_other_the_one_near_the_model_counts(
    model: float, trusted: bool
) -> None:
    memory = BurstMemory(4, 1)
    for rate in (1e8, 4e8):
        memory.add(0, 0, CODE[0], np.zeros(1), rate, 0.01, model, True, 5)
    assert memory.doubts().trusted.tolist() == [False, trusted]
    assert memory.timed_code.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("others", "model", "trusted"),
    [
        ((1.1e8, 1.2e8), 1.5e8, [True, False, True, True]),
        ((1.1e8, 1.2e8), 2.5e8, [False, True, False, False]),  # that is nearer to the fast one
        ((1.1e8,), 1.5e8, [False, True, False]),  # only two agree
        ((1.1e8, 1.2e8, 3.9e8, 4.1e8), 1.5e8, [False, True, False, False, True, True]),
    ],
)
def test_slower_ones_that_agree_and_are_near_the_model_count(
    others: tuple[float, ...], model: float, trusted: list[bool]
) -> None:
    memory = BurstMemory(4, 1)
    for rate in (1e8, 4e8, *others):
        memory.add(0, 0, CODE[0], np.zeros(1), rate, 0.01, model, True, 5)
    assert memory.doubts().trusted.tolist() == trusted


def test_what_is_left_behind_dropped_bursts_is_as_it_was() -> None:
    memory = BurstMemory(4, 1, compared=2)
    rates = ((5e8, 2e8), (5e8, 1.1e8), (4e8, 3e8))
    for at, (rate, highest) in enumerate(rates):
        memory.add(
            at, 0, CODE[at % 2], np.array([0.1 * at]), rate, 0.01, 1e8, True, 5 + at,
            is_stored=at == 0, spacing=Spacing(3.0 + at, 0.5), highest=highest,
            compared=np.array([0.3 * at, 0.0]),
        )  # fmt: skip
    kept, dropped = memory.drop_stored(0)
    assert (kept.tolist(), dropped.tolist()) == ([1, 2], [0])
    assert memory.spacing.tolist() == [[4.0, 0.5], [5.0, 0.5]]
    assert memory.doubts().trusted.tolist() == [False, True]  # by the highest rates
    memory.add(3, 0, CODE[0], np.zeros(1), 1e8, 0.01, 1e8, True, 9, compared=np.array([0.65, 0.0]))
    assert memory.doubts().trusted.tolist() == [False, False, False]  # it contradicts the one alike


@pytest.mark.parametrize(
    ("likely", "unlikely", "third"),
    [(2.9e8, 3.1e8, 3.6e8), (1.7e7, 1.6e7, 1.4e7)],
    ids=["too fast", "far too slow"],  # what comes round unseen makes code seem slower
)
def test_a_timing_that_is_far_off_the_model_counts_only_if_it_is_confirmed(
    likely: float, unlikely: float, third: float
) -> None:
    memory = BurstMemory(4, 1)
    for code, rate in ((0, likely), (1, unlikely)):
        memory.add(0, 0, CODE[code], np.zeros(1), rate, 0.01, 1e8, True, 5 + code)
    assert memory.doubts().trusted.tolist() == [True, False]
    assert memory.timed_code.tolist() == [5, -1]
    assert memory.expected_rates()[0] == pytest.approx([likely, 1e8])
    memory.add(1, 0, CODE[1], np.zeros(1), third, 0.01, 1e8, True, 6)
    assert memory.doubts().trusted.all()
    assert memory.timed_code.tolist() == [5, 6, 6]


def run(rates: RatesByCode, code: int, *accesses_per_cpu_second: float) -> None:
    """Have enough windows run it, at these rates in turn, for them to be looked at."""
    while not rates.add(CodeRate(code, accesses_per_cpu_second[0], 1)):
        accesses_per_cpu_second = (*accesses_per_cpu_second[1:], accesses_per_cpu_second[0])


def test_timings_in_doubt_go_by_windows_that_agree() -> None:
    rates = RatesByCode(128)
    memory = BurstMemory(4, 1, window_rates=rates)
    for code, rate in ((0, 2e8), (0, 4.4e8), (1, 1.5e8)):
        memory.add(0, 0, CODE[code], np.zeros(1), rate, 0.01, 1e8, True, 5 + code)
    assert memory.timed_code.tolist() == [-1, -1, 6]
    for code in (5, 6):
        run(rates, code, 3.5e8)
    memory.rates_changed()
    assert memory.doubts().trusted.all()
    assert memory.timed_code.tolist() == [5, 5, 6]
    assert memory.expected_rates()[0] == pytest.approx([3.5e8, 3.5e8, 1.5e8])


def test_windows_on_other_data_settle_no_doubt() -> None:
    """A small area goes steadily; a large one now faster, now slower, as its bursts did."""
    rates, small, large = RatesByCode(128), Spacing(2.0, 0.2), Spacing(10.0, 0.2)
    memory = BurstMemory(4, 1, window_rates=rates)
    for rate in (2e8, 4.4e8):
        memory.add(0, 0, CODE[0], np.zeros(1), rate, 0.01, 1e8, True, 5, spacing=large)
    while not rates.add(CodeRate(5, 3.5e8, 1), small):
        pass
    memory.rates_changed()
    assert memory.timed_code.tolist() == [-1, -1]
    memory.add(0, 0, CODE[0], np.zeros(1), 4.4e8, 0.01, 1e8, True, 5, spacing=small)
    assert memory.timed_code.tolist() == [-1, -1, 5]


@pytest.mark.parametrize("unlikely", [(7e8,), (2e8, 5e8)])
def test_timings_stay_in_doubt_where_windows_are_far_too_fast_or_differ(
    unlikely: tuple[float, ...],
) -> None:
    rates = RatesByCode(128)
    run(rates, 5, *unlikely)
    memory = BurstMemory(4, 1, window_rates=rates)
    for code, rate in ((0, 2e8), (0, 4.4e8), (1, 1.5e8)):
        memory.add(0, 0, CODE[code], np.zeros(1), rate, 0.01, 1e8, True, 5 + code)
    assert memory.timed_code.tolist() == [-1, -1, 6]
    assert memory.doubts().trusted.tolist() == [False, False, True]


def test_a_timing_is_not_too_fast_where_what_was_not_seen_to_return_may_have_hit() -> None:
    memory = BurstMemory(4, 1)
    for code, highest in ((0, 2e8), (1, 1.1e8)):
        memory.add(0, 0, CODE[code], np.zeros(1), 5e8, 0.01, 1e8, True, 5 + code, highest=highest)
    assert memory.doubts().trusted.tolist() == [True, False]
    assert memory.expected_rates()[0] == pytest.approx([5e8, 1e8])


def test_each_kind_of_code_has_the_same_part_however_many_bursts_ran_it() -> None:
    memory = BurstMemory(4, 1)
    for row in (0, 0, 0, 1):
        memory.add(0, 0, CODE[row], np.zeros(1), 1e8, 0.1, 1e8, True)
    memory.add(0, 0, np.zeros(4), np.zeros(1), 1e8, 0.1, 1e8, True)  # of unknown code
    assert memory.parts_of_kinds() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1, 0])


def test_windows_are_laid_out_by_what_bursts_ran() -> None:
    rng = np.random.default_rng(1)
    memory = BurstMemory(32, 2, capacity=6)
    seen: list[int] = []
    for window in range(4):
        code = np.bincount(rng.integers(0, 32, 5), minlength=32).astype(np.float64)
        memory.add(window, 0, code, np.zeros(2), 1e9, 0.1, 1e9, is_timed=False)
        seen += [each for each in np.flatnonzero(code).tolist() if each not in seen]
    vectors = [rng.integers(0, 9, 32).astype(np.float64) for _ in range(3)]
    rows = memory.compact([*vectors, np.ones(7)])
    for row, hits in zip(rows, vectors, strict=False):
        assert row[:-1].tolist() == hits[seen].tolist()
        assert row[-1] == np.delete(hits, seen).sum()
    assert not rows[3].any()  # of another length: nothing is known of it


def test_a_burst_whose_data_changed_has_the_spacing_of_the_one_that_missed_alike() -> None:
    memory = BurstMemory(4, 2)
    near, far = Spacing(4.0, 0.1), Spacing(9.0, 0.2)
    told = (
        (0, [0.5, 0.1], near),
        (0, [0.5, 0.4], far),
        (0, [0.49, 0.38], None),  # as the second
        (0, [0.5, 0.25], None),  # like neither
        (1, [0.5, 0.1], None),  # other code
    )
    for window, (row, curve, spacing) in enumerate(told):
        memory.add(
            window, 0, CODE[row], np.array(curve), 1e8, 0.1, 1e8, is_timed=True, spacing=spacing
        )
    assert memory.spacing[:3].tolist() == [[4.0, 0.1], [9.0, 0.2], [9.0, 0.2]]
    assert np.isnan(memory.spacing[3:]).all()
    memory.set_curve(3, np.array([0.5, 0.11]))
    assert memory.spacing[3].tolist() == [4.0, 0.1]
