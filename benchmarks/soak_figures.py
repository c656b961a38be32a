"""What the samples of a soak come to: figures, goals that were missed, a section of a document."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

GOALS = {
    "memory_growth": 1.25,
    "own_cpu_share": 0.10,
    "median_scrape_seconds": 0.1,
    "known_share": 0.5,
}
CYCLES_GROWTH_MB = 8.0
CYCLES_WITH_BURST = 0.5  # of those with a busy process
TOLD_MINUTES = (1, 10, 20, 30)
SCRAPED_SERIES = 5000  # scrapes of so many series, or more, are judged, if there are any


def missed_by_cycles(kinds: dict[str, dict[str, float]]) -> list[str]:
    """What attaching and detaching left, and where nothing came of it, for people."""
    found = []
    for kind, figures in kinds.items():
        leaks = [name for name in figures if name.startswith("leaked_") and figures[name]]
        found += [f"{name}: {figures[name]} by {kind} cycles" for name in leaks]
        if figures["rss_growth_mb"] > CYCLES_GROWTH_MB:
            found.append(f"{figures['rss_growth_mb']:.1f} MB more after {kind} cycles")
        if not figures["unharmed"]:
            found.append(f"harmed: the target of {kind} cycles")
        if kind == "busy" and figures["with_burst"] < CYCLES_WITH_BURST * figures["cycles"]:
            found.append(f"{figures['with_burst']} of {figures['cycles']} busy cycles had a burst")
    return found


def missed(figures: dict[str, Any]) -> list[str]:
    """Goals that were missed, for people."""
    found = missed_by_cycles(figures["cycles"])
    if "samples" not in figures:
        return found
    found += [
        f"{name} is {figures[name]:.3f}, the goal is {'at least' if least else 'at most'} {goal}"
        for name, goal in GOALS.items()
        for least in [name == "known_share"]
        if (name != "memory_growth" or figures["minutes"] >= 10)
        and (figures[name] < goal if least else figures[name] > goal)
    ]
    for name in ("leaked_descriptors", "leaked_threads"):
        if figures[name]:
            found.append(f"{name}: {figures[name]}")
    found += [f"wrong: {each}" for each in figures["wrong"]]
    found += [f"harmed: {each}" for each in figures["harmed"]]
    return found


def figures_of(samples: Sequence[dict[str, float]]) -> dict[str, Any]:
    """What the samples come to."""
    settled = samples[len(samples) // 3 :]
    after_start = [each for each in samples if each["elapsed_seconds"] >= 60] or settled
    first, last = after_start[0], after_start[-1]
    passed = last["elapsed_seconds"] - first["elapsed_seconds"]
    used = last["own_cpu_seconds"] - first["own_cpu_seconds"]
    tenth = settled[-max(len(samples) // 10, 1) :]
    end_mb = statistics.median(each["rss_mb"] for each in tenth)
    large = [each for each in samples if each["series"] >= SCRAPED_SERIES] or samples
    return {
        "rss_mb_settled": settled[0]["rss_mb"],
        "rss_mb_end": end_mb,
        "memory_growth": max(end_mb - 10, 0) / settled[0]["rss_mb"],
        "own_cpu_share": used / passed if passed > 0 else samples[-1]["own_cpu_share"],
        "judged_scrapes": len(large),
        "judged_scrape_series": statistics.median(each["series"] for each in large),
        "median_scrape_cpu_seconds": statistics.median(
            each["scrape_cpu_seconds"] for each in large
        ),
        "median_scrape_seconds": statistics.median(each["scrape_seconds"] for each in large),
        "longest_loop_seconds": max(each["loop_seconds"] for each in samples),
        "series": samples[-1]["series"],
    }


def markdown(figures: Mapping[str, Any]) -> str:
    """The figures for a document: a table of what was there when, and words on the rest."""
    heads = "after|targets|resident, MB|children, MB|own CPU, of a core|held|descriptors|threads"
    rows = [f"{heads}|series|scrape, ms".split("|"), ["---"] * 10, *_rows(figures["samples"])]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *_words(figures)])


def _rows(samples: Sequence[Mapping[str, float]]) -> Iterator[list[str]]:
    """A row a moment; CPU time and scrapes are those since the row before."""
    last = samples[-1]["elapsed_seconds"] / 60
    minutes = [each for each in TOLD_MINUTES if each < last - 0.5] + [last]
    since = 0
    for minute in minutes:
        at = min(
            range(since, len(samples)),
            key=lambda at: abs(samples[at]["elapsed_seconds"] - 60 * minute),
        )
        one, part = samples[at], samples[since : at + 1]
        passed = one["elapsed_seconds"] - part[0]["elapsed_seconds"]
        used = one["own_cpu_seconds"] - part[0]["own_cpu_seconds"]
        scrape_seconds = statistics.median(each["scrape_seconds"] for each in part)
        yield [
            f"{minute:.3g} min",
            f"{one['targets']:.0f}",
            f"{one['rss_mb']:.0f}",
            f"{one['children_rss_mb']:.0f}",
            f"{used / passed:.1%}" if passed else "?",
            f"{one['stop_share']:.2%}",
            f"{one['open_descriptors']:.0f}",
            f"{one['threads']:.0f}",
            f"{one['series']:,.0f}",
            f"{1e3 * scrape_seconds:.0f}",
        ]
        since = at


def _words(figures: Mapping[str, Any]) -> Iterator[str]:
    idle, busy = figures["cycles"]["idle"], figures["cycles"]["busy"]
    refused = sum(count for reason, count in figures["bursts"].items() if reason != "taken")
    yield (
        f"{figures['asked_targets']} targets and their children, load average"
        f" {figures['busy'][0]:.1f} at the end. {figures['known_share']:.0%} of the long-lived busy"
        f" targets had a curve, {len(figures['wrong']) or 'none'} a wrong one;"
        f" {figures['bursts'].get('taken', 0):,} bursts of them, {refused:,} refused."
        f" {figures['samples'][-1]['ended']:,.0f} targets ended by themselves;"
        f" {len(figures['harmed']) or 'none'} of the others was harmed. Once all were let go,"
        f" {figures['leaked_descriptors']} descriptors and {figures['leaked_threads']} threads more"
        " than when a first one had come and gone were there."
    )
    yield ""
    yield (
        f"Half of {figures['judged_scrapes']:,} scrapes took"
        f" {1e3 * figures['median_scrape_seconds']:.0f} ms at most, half"
        f" {1e3 * figures['median_scrape_cpu_seconds']:.0f} ms of CPU time at most, of"
        f" {figures['judged_scrape_series']:,.0f} series in the median (scrapes of fewer than"
        f" {SCRAPED_SERIES:,} are left out if there are others)."
    )
    yield ""
    yield (
        f"{idle['cycles']:,} times attaching and letting go left {idle['leaked_descriptors']}"
        f" descriptors, {idle['leaked_threads']} threads, {idle['leaked_children']} child processes"
        f" and {idle['rss_growth_mb']:.1f} MB, for {1e3 * idle['cycle_cpu_seconds']:.1f} ms of CPU"
        f" time each; {busy['cycles']:,} times until a busy process had a burst"
        f" ({busy['with_burst']:,} had one), {busy['leaked_descriptors']},"
        f" {busy['leaked_threads']}, {busy['leaked_children']} and {busy['rss_growth_mb']:.1f} MB."
    )
