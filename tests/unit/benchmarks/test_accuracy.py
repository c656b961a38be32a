"""The accuracy benchmark judges right and wrong estimates as such."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from invented_reference import misses_alone

import corun
from accuracy import Pair, Score, markdown, means, missed_goals, score
from reference.estimates import Estimate
from reference.running import Timing
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
        unknown_windows=0,
        unknown_cpu_share=0.0,
        phases=4,
        bursts=9,
        sampled_accesses=5,
        warnings=(),
    )


def judged(estimate: Estimate, policy: str = "lru", slow: float = 1.0) -> Score:
    pairs = [
        Pair(Timing(2.0, 2.0), Timing(2.0 * slow * spread, 3.0), estimate)
        for spread in (0.9, 1.0, 2.0)
    ]
    return score("p", pairs, reference(), policy)


@pytest.mark.parametrize("policy", ["lru", "random"])
def test_the_truth_has_no_error(policy: str) -> None:
    result = judged(perfect(policy), policy)
    assert result.whole_run_error == pytest.approx(0, abs=1e-9)
    assert result.cdf_error == pytest.approx(0, abs=1e-9)
    assert missed_goals([result]) == []


def test_the_other_policy_has() -> None:
    assert judged(perfect("random"), "lru").whole_run_error > 1


def test_an_average_without_phases_has_a_cdf_error_only() -> None:
    truth = perfect("lru")
    flat = dataclasses.replace(truth, windows=truth.overall[None, :], weights=np.ones(1))
    result = judged(flat)
    assert result.whole_run_error == pytest.approx(0, abs=1e-9)
    assert result.cdf_error > 1


def test_costs_are_medians_of_pairs_in_percent() -> None:
    result = judged(perfect("lru"), slow=1.04)
    assert result.slowdown == pytest.approx(4)
    assert result.extra_cpu == pytest.approx(50)
    assert result.runs == 3


def test_goals_are_about_the_mean_over_programs() -> None:
    fast, slow = judged(perfect("lru"), slow=1.0), judged(perfect("lru"), slow=1.2)
    assert means([fast, slow])["slowdown"] == pytest.approx(10)
    assert [line.split()[1] for line in missed_goals([fast, slow])] == ["slowdown"]


def test_a_figure_that_is_none_misses_its_goal() -> None:
    unknown = dataclasses.replace(judged(perfect("lru")), cdf_error=np.nan)
    assert [line.split()[1] for line in missed_goals([unknown])] == ["cdf"]
    shared = corun.Score("a+b", (1, 1), *[0.0] * 7)
    assert corun.missed_goals([shared]) == []
    lines = corun.missed_goals([shared, dataclasses.replace(shared, excess=np.nan)])
    assert [line.split()[1] for line in lines] == ["excess"]


def test_the_table_is_rectangular_and_ends_with_the_mean() -> None:
    rows = markdown([judged(perfect("lru"))] * 2).splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert len(rows) == 2 + 2 + 1
    assert "**mean**" in rows[-1]
