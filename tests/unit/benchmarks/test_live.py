"""Counters as a Prometheus stores them, judged; recordings found and judged."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from commands import free_port
from invented import burst_record
from invented_reference import misses_alone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily
from waiting import wait_for

from evaluation.counters import apart, increases, judge_counters, miss_errors
from evaluation.experiments import sources
from evaluation.experiments.live import Live, figures, first_curve_seconds, flat_is_better, goals
from evaluation.experiments.sources import BURSTS, Sources
from evaluation.replay import judge_document, recordings
from evaluation.scraping import (
    Scrape,
    Scraper,
    parse_scrape,
    read_scrapes,
    write_scrapes,
)
from memsampd.estimate.records import Totals
from memsampd.exporters.http import MetricsServer
from reference.programs import PROGRAMS, judged
from reference.windows import ERROR_SIZES_BYTES

SIZES = len(ERROR_SIZES_BYTES)
ACCESSES = np.full(8, 1000)
LRU = np.array([[(w + 1) * (34 - 2 * s) for s in range(17)] for w in range(8)])
REFERENCE = misses_alone(ACCESSES, LRU, LRU[:, :SIZES])


def scrape(window: int, seconds: float, scale: float = 1.0) -> Scrape:
    """What perfect counters say at the end of a window."""
    misses = scale * LRU[:window, :SIZES].sum(axis=0).astype(float)
    return Scrape(seconds, 1000.0 * window, misses, seconds, 0.1)


def perfect(scale: float = 1.0) -> list[Scrape]:
    return [scrape(window, float(window), scale) for window in range(9)]


# -- scraping ------------------------------------------------------------------------------------


def page(command: str, accesses: float) -> str:
    labels = f'pid="7",command="{command}"'
    return (
        f"memsampd_accesses_total{{{labels}}} {accesses}\n"
        f"memsampd_target_cpu_seconds_total{{{labels}}} 1.5\n"
        f"memsampd_unknown_cpu_ratio{{{labels}}} 0.25\n"
        f'memsampd_misses_total{{{labels},policy="lru",size_bytes="1024"}} 5\n'
        f'memsampd_misses_total{{{labels},policy="lru",size_bytes="67108864"}} 9\n'
        f'memsampd_misses_total{{{labels},policy="random",size_bytes="1024"}} 7\n'
    )


def test_a_page_is_read_whatever_the_target_was_called() -> None:
    found = parse_scrape(page("sh", 10) + page("gzip", 32), 2.5)
    assert (found.seconds, found.accesses) == (2.5, 42)
    assert (found.cpu_seconds, found.unknown_cpu_share) == (3.0, 0.25)
    assert found.misses.tolist() == [10.0] + [0.0] * (SIZES - 1)
    assert parse_scrape(page("sh", 1), 0, "random").misses[0] == 7
    assert not parse_scrape("", 0).has_curve


def test_scrapes_are_kept(tmp_path: Path) -> None:
    write_scrapes(tmp_path / "kept.json", perfect())
    for kept, made in zip(read_scrapes(tmp_path / "kept.json"), perfect(), strict=True):
        assert dataclasses.astuple(kept)[:2] == dataclasses.astuple(made)[:2]
        np.testing.assert_array_equal(kept.misses, made.misses)


class Growing:
    """Counters that grow with every scrape."""

    def __init__(self) -> None:
        self.scrapes = 0

    def collect(self) -> Iterator[CounterMetricFamily]:
        self.scrapes += 1
        for name in ("memsampd_accesses", "memsampd_target_cpu_seconds"):
            family = CounterMetricFamily(name, "counter", labels=("pid",))
            family.add_metric(["7"], float(self.scrapes))
            yield family


def test_a_server_is_scraped_as_long_as_it_is_there() -> None:
    registry, address = CollectorRegistry(auto_describe=False), f"127.0.0.1:{free_port()}"
    registry.register(Growing())
    begun = time.monotonic()
    with Scraper(address, 0.05).running() as scraper:
        server = MetricsServer(lambda open_metrics: generate_latest(registry), address)
        try:
            wait_for(lambda: len(scraper.scrapes(begun)) >= 3)
        finally:
            server.close()
    found = scraper.scrapes(begun)
    assert len(found) >= 3
    assert all(b.accesses > a.accesses for a, b in itertools.pairwise(found))
    assert all(each.seconds > 0 for each in found)


# -- judging -------------------------------------------------------------------------------------


def test_perfect_counters_have_no_error() -> None:
    errors = judge_counters(perfect(), REFERENCE)
    assert errors.whole_run == pytest.approx(0, abs=1e-9)
    assert errors.cdf == pytest.approx(0, abs=1e-9)
    assert errors.flat_cdf > 1
    np.testing.assert_allclose(miss_errors(perfect()[-1].misses, REFERENCE), 0, atol=1e-9)


def test_counters_at_a_steady_rate_are_a_flat_line() -> None:
    last = perfect()[-1]
    flat = [
        dataclasses.replace(last, seconds=8 * part, accesses=part * last.accesses,
                            misses=part * last.misses)
        for part in np.linspace(0, 1, 9)
    ]  # fmt: skip
    errors = judge_counters(flat, REFERENCE)
    assert errors.whole_run == pytest.approx(0, abs=1e-9)
    assert errors.cdf == pytest.approx(errors.flat_cdf)


def test_too_many_misses_are_an_error() -> None:
    errors = judge_counters(perfect(1.2), REFERENCE)
    exact = LRU[:, :SIZES].sum(axis=0) / ACCESSES.sum()
    assert errors.whole_run == pytest.approx(20 * exact.mean())
    np.testing.assert_allclose(miss_errors(perfect(1.2)[-1].misses, REFERENCE), 20)


def states() -> list[Totals]:
    """What a replay counts where the counters are right."""
    return [Totals(each.accesses, {"lru": each.misses}, {}) for each in perfect()]


def test_a_scrape_shows_a_state_of_the_replay() -> None:
    assert apart(perfect(), states()) == 0
    assert apart(perfect()[::3], states()) == 0
    assert apart([], states()) == apart(perfect()[:1], []) == 0
    assert apart(perfect(), []) == 100
    assert apart(perfect(1.01), states()) == pytest.approx(1)


def test_only_sizes_with_misses_are_judged_relatively() -> None:
    few = misses_alone(ACCESSES, np.where(np.arange(17) < 3, LRU, 0), LRU[:, :SIZES])
    assert len(miss_errors(perfect()[-1].misses, few)) == 3


def test_counters_do_not_fall() -> None:
    with pytest.raises(ValueError, match="fell"):
        increases(perfect()[::-1])
    accesses, misses = increases(perfect())
    assert accesses.sum() == ACCESSES.sum()
    np.testing.assert_array_equal(misses[1:], LRU[:, :SIZES])
    with pytest.raises(ValueError, match="nothing"):
        judge_counters([], REFERENCE)


def document(known: bool = True) -> dict[str, Any]:
    """An export without an error, its last window perhaps without a curve."""
    exact = LRU[:, :SIZES] / 1000

    def curve(ratios: Any, width: float) -> dict[str, Any]:
        return {"miss_ratio": ratios, "low": list(ratios), "high": [r + width for r in ratios]}

    windows = [
        {"accesses": 1000.0, "cpu_seconds": 1.0, **curve(row, 0.0)} for row in exact.tolist()
    ]
    if not known:
        nothing = {"miss_ratio": [None] * SIZES, "low": [0.0] * SIZES, "high": [1.0] * SIZES}
        windows[-1] = {**windows[-1], **nothing}
    return {
        "sizes_bytes": list(ERROR_SIZES_BYTES),
        "windows": windows,
        "overall": curve(exact.mean(axis=0).tolist(), 0.02),
    }


def test_an_export_is_judged() -> None:
    right = judge_document(document(), REFERENCE)
    assert (right.whole_run, right.cdf) == pytest.approx((0, 0), abs=1e-9)
    assert right.flat_cdf > 1
    assert (right.bounds_hold, right.unknown_cpu) == (100, 0)
    assert (right.band_32k, right.band_1m) == pytest.approx((2, 2))
    wrong = document(known=False)
    wrong["overall"]["low"] = wrong["overall"]["high"]
    judgement = judge_document(wrong, REFERENCE)
    assert (judgement.bounds_hold, judgement.unknown_cpu) == (0, 12.5)


def test_a_run_is_judged_by_scrapes_and_recording() -> None:
    row = figures(perfect(), document(), states(), [], REFERENCE)
    assert set(row) == set(Live.columns)
    assert row["live_cdf"] == pytest.approx(row["recorded_cdf"], abs=1e-9)
    assert row["apart"] == 0
    assert row["accesses_counted"] == 1
    silent = figures([], document(), states(), [], REFERENCE)
    assert (silent["live_cdf"], silent["recorded_cdf"]) == (None, row["recorded_cdf"])


def test_the_first_curve_comes_with_the_first_burst_that_saw_anything() -> None:
    burst = msgspec.structs.replace(burst_record(0, 1), analysed_seconds=2.0)
    earlier = msgspec.structs.replace(burst, analysed_seconds=0.5)
    empty = msgspec.structs.replace(burst, accesses=0, analysed_seconds=0.1)
    assert first_curve_seconds([burst, earlier, empty]) == 0.5
    assert first_curve_seconds([empty]) == np.inf


def test_goals_are_met_by_the_truth_and_missed_by_nothing() -> None:
    def rows(row: Any) -> list[dict[str, str]]:
        return [{"program": "p", "repeat": "0"} | {k: str(v or 0) for k, v in row.items()}]

    burst = msgspec.structs.replace(burst_record(0, 1), analysed_seconds=0.5)
    judgement = {
        goal.what: goal.is_met
        for goal in goals(rows(figures(perfect(), document(), states(), [burst], REFERENCE)))
    }
    assert judgement.pop("live: CPU time without a curve, %") is False
    assert all(judgement.values())
    silent = rows(figures([], document(), states(), [], REFERENCE))
    silent[0] = {k: "" if k.startswith("live") else v for k, v in silent[0].items()}
    assert not any(goal.is_met for goal in goals(silent) if goal.what.startswith("live: "))
    missed = [goal.what for goal in goals(silent) if not goal.is_met]
    assert "seconds to the first curve, the most" in missed


def test_a_round_of_which_nothing_was_counted_is_a_missed_goal_beside_others_that_were() -> None:
    good = dict.fromkeys((*Live.key, *Live.columns), "0")
    nothing = good | {"repeat": "1", "live_whole_run": "", "recorded_whole_run": "nan"}
    for rows, is_met in (([good], True), ([good, nothing], False)):
        judged_goals = {goal.what: goal for goal in goals(rows)}
        for way in ("live", "recorded"):
            goal = judged_goals[f"{way}: rounds of which nothing was counted"]
            assert (goal.value, goal.is_met) == (len(rows) - 1, is_met)


def test_a_source_that_told_nothing_in_a_round_misses_a_goal() -> None:
    good = dict.fromkeys((*Sources.key, *Sources.columns), "100")
    good |= {"source": BURSTS, "own_cpu": "0.05"}
    for rows, told in (([good], 0), ([good, good | {"held": ""}], 1)):
        judged_goals = {goal.what: goal for goal in sources.goals(rows, "0.05")}
        what = f"--own-cpu 0.05, {BURSTS}: rounds of which nothing was told"
        assert (judged_goals[what].value, judged_goals[what].is_met) == (told, not told)


def test_a_flat_line_wins_where_its_error_is_less() -> None:
    def row(program: str, ours: float, flat: float) -> dict[str, str]:
        return {"program": program, "live_cdf": str(ours), "live_flat_cdf": str(flat)}

    rows = [row("a", 0.3, 1), row("b", 2, 1), row("c", 0.3, 0.2), row("d", 1, 4), row("e", 0, 1)]
    assert flat_is_better(rows, "live") == 25
    assert np.isnan(flat_is_better(rows[2:3], "live"))


# -- programs ------------------------------------------------------------------------------------


def test_held_out_programs_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    held_out = [program.name for program in PROGRAMS if program.held_out]
    assert len(held_out) >= 3
    assert not {program.name for program in judged()} & set(held_out)
    assert judged(with_held_out=True) == list(PROGRAMS)
    with pytest.raises(ValueError, match=held_out[0]):
        judged(held_out[:1])
    assert [program.name for program in judged(held_out[:1], with_held_out=True)] == held_out[:1]


def test_recordings_are_known_by_their_names(tmp_path: Path) -> None:
    for name in ("xz-default-main-1.mem", "gzip-scraped-live-0.mem", "other-default-main-0.mem"):
        (tmp_path / name).touch()
    assert [program for program, _ in recordings([tmp_path])] == ["gzip", "xz"]
    one = tmp_path / "xz-default-main-1.mem"
    assert list(recordings([one])) == [("xz", one)]
    assert list(recordings([tmp_path], ["xz"])) == [("xz", one)]
