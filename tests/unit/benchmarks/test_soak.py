"""What samples of a soak come to."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from soak import Target, harmed
from soak_figures import figures_of, markdown, missed


def sample(
    seconds: float, rss_mb: float = 100.0, scrape_seconds: float = 0.02, series: int = 9000
) -> dict[str, float]:
    return {
        "elapsed_seconds": seconds,
        "rss_mb": rss_mb,
        "children_rss_mb": 50.0,
        "own_cpu_seconds": 0.04 * seconds,
        "own_cpu_share": 0.04,
        "stop_share": 0.001,
        "open_descriptors": 90,
        "threads": 9,
        "targets": 50,
        "ended": seconds // 10,
        "loop_seconds": 0.1,
        "scrape_seconds": scrape_seconds,
        "scrape_cpu_seconds": 0.01,
        "series": series,
    }


def cycles(**changes: float) -> dict[str, float]:
    kept = {"cycles": 5000, "with_burst": 0, "cycle_cpu_seconds": 0.004, "rss_growth_mb": 1.0}
    leaked = dict.fromkeys(("leaked_descriptors", "leaked_threads", "leaked_children"), 0)
    return {**kept, **leaked, "unharmed": True, **changes}


def figures(samples: list[dict[str, float]], **changes: Any) -> dict[str, Any]:
    return {
        "minutes": samples[-1]["elapsed_seconds"] / 60,
        "asked_targets": 50,
        "busy": (2.5, 2.0, 1.0),
        "samples": samples,
        **figures_of(samples),
        "known_share": 0.9,
        "bursts": {"taken": 700, "not-running": 3},
        "wrong": [],
        "harmed": [],
        "leaked_descriptors": 0,
        "leaked_threads": 0,
        "cycles": {"idle": cycles(), "busy": cycles(cycles=50, with_burst=50)},
        **changes,
    }


HALF_AN_HOUR = [sample(15.0 * at) for at in range(121)]


def test_what_was_there_when_is_told() -> None:
    text = markdown(figures(HALF_AN_HOUR))
    moments = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    assert moments == ["| after", "| ---", "| 1 min", "| 10 min", "| 20 min", "| 30 min"]
    assert "| 30 min | 50 | 100 | 50 | 4.0% | 0.10% | 90 | 9 | 9,000 | 20 |" in text
    assert "5,000 times" in text
    assert markdown(figures(HALF_AN_HOUR[:11])).count(" min |") == 2


def test_no_goal_is_missed_by_a_good_one() -> None:
    assert missed(figures(HALF_AN_HOUR)) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wrong": ["16384 at 1024"]}, "wrong"),
        ({"harmed": ["walk 7 is traced"]}, "harmed"),
        ({"leaked_descriptors": 2}, "leaked_descriptors: 2"),
        ({"known_share": 0.3}, "known_share"),
        ({"cycles": {"idle": cycles(leaked_threads=1)}}, "leaked_threads: 1 by idle"),
        ({"cycles": {"idle": cycles(rss_growth_mb=20.0)}}, "20.0 MB more"),
        ({"cycles": {"busy": cycles(cycles=50, with_burst=24)}}, "24 of 50 busy cycles"),
    ],
)
def test_what_goes_wrong_is_a_miss(changes: dict[str, Any], words: str) -> None:
    (found,) = missed(figures(HALF_AN_HOUR, **changes))
    assert words in found


def test_a_target_that_is_left_stopped_or_has_ended_is_harmed() -> None:
    command = ["sleep", "1000"]
    process = subprocess.Popen(command)
    fleet = [Target("idle", 4096, command, process)]
    try:
        assert harmed(fleet, 0.0) == []
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert harmed(fleet, 0.0) == [f"idle {process.pid} is stopped"]
    finally:
        process.kill()
        process.wait()
    assert harmed(fleet, 0.0) == [f"idle {process.pid} ended: -9"]


def test_growing_memory_and_slow_scrapes_are_misses() -> None:
    growing = [sample(15.0 * at, 100 + at, 0.2) for at in range(121)]
    assert [each.split()[0] for each in missed(figures(growing))] == [
        "memory_growth",
        "median_scrape_seconds",
    ]


@pytest.mark.parametrize(("few", "judged"), [(4999, 0.2), (5000, 0.02)])
def test_scrapes_of_few_series_do_not_hide_slow_ones(few: int, judged: float) -> None:
    quick = [sample(15.0 * at, series=few) for at in range(80)]
    slow = [sample(15.0 * at, 100.0, 0.2, 5001) for at in range(80, 121)]
    found = figures([*quick, *slow])
    assert found["median_scrape_seconds"] == judged
    assert found["judged_scrapes"] == (41 if few < 5000 else 121)
    assert f"Half of {found['judged_scrapes']} scrapes took {1e3 * judged:.0f} ms" in markdown(
        found
    )
