"""Right and wrong estimates are judged as such."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from invented_reference import misses_alone

import corun
from reference.estimates import Estimate
from reference.judging import Errors, exact_pieces, judge
from reference.store import Reference

WINDOWS = 4
ACCESSES = np.array([100, 100, 100, 50])


def reference() -> Reference:
    """Misses that fall with size and differ by window."""
    lru = np.array([[(w + 1) * (17 - s) for s in range(17)] for w in range(WINDOWS)])
    return misses_alone(ACCESSES, lru, lru[:, :12] // 2)


def perfect(policy: str) -> Estimate:
    kept = reference()
    misses = kept.lru[:, :12] if policy == "lru" else kept.random
    overall = misses.sum(axis=0) / ACCESSES.sum()
    return Estimate(
        overall=overall,
        low=overall,
        high=overall + 0.1,
        windows=misses / ACCESSES[:, None],
        weights=ACCESSES.astype(float),
        unknown_cpu_share=0.0,
    )


def judged(estimate: Estimate, policy: str = "lru") -> Errors:
    return judge(estimate.overall, estimate.windows, estimate.weights, reference(), policy)


@pytest.mark.parametrize("policy", ["lru", "random"])
def test_the_truth_has_no_error(policy: str) -> None:
    errors = judged(perfect(policy), policy)
    assert errors.whole_run == pytest.approx(0, abs=1e-9)
    assert errors.cdf == pytest.approx(0, abs=1e-9)


def test_the_other_policy_has() -> None:
    assert judged(perfect("random")).whole_run > 1


def test_an_average_without_phases_has_a_cdf_error_only() -> None:
    truth = perfect("lru")
    flat = np.repeat(truth.overall[None, :], WINDOWS, axis=0)
    errors = judged(dataclasses.replace(truth, windows=flat))
    assert errors.whole_run == pytest.approx(0, abs=1e-9)
    assert errors.cdf == pytest.approx(errors.flat_cdf)
    assert errors.cdf > 1


def test_windows_of_other_lengths_are_judged_by_what_ran_in_them() -> None:
    """Two of three windows are as long as one and a half of the reference's; one made no access."""
    bounds = np.array([0, 150, 150, 350])
    accesses, misses = exact_pieces(reference(), bounds)
    lru = reference().lru[:, :12]
    np.testing.assert_allclose(misses[0], lru[0] + lru[1] / 2)
    assert misses[1].tolist() == [0] * 12
    np.testing.assert_allclose(misses.sum(axis=0), lru.sum(axis=0))
    windows = misses / np.maximum(accesses, 1)[:, None]
    errors = judge(misses.sum(axis=0) / 350, windows, 2.0 * accesses, reference())
    assert (errors.whole_run, errors.cdf) == pytest.approx((0, 0), abs=1e-9)


def test_a_figure_that_is_none_misses_its_goal() -> None:
    shared = corun.Score("a+b", (1, 1), *[0.0] * 7)
    assert corun.missed_goals([shared]) == []
    lines = corun.missed_goals([shared, dataclasses.replace(shared, excess=np.nan)])
    assert [line.split()[1] for line in lines] == ["excess", "excess"]


def test_a_model_of_sharing_is_judged_beside_those_that_know_nothing_of_it() -> None:
    good = corun.Score("a+b", (1, 1), 0.8, 0.1, 0.2, 0.4, 1.0, 1.0, 0.0)
    assert corun.missed_goals([good]) == []
    as_alone = dataclasses.replace(good, exact=good.alone)
    assert corun.missed_goals([as_alone]) == ["mean exact 0.20, goal 0.10"]
    worse_than_none = dataclasses.replace(good, excess=4.1, shared_excess=-0.3)
    assert corun.missed_goals([worse_than_none]) == ["mean excess 4.10, goal 0.70"]
