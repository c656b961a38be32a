"""Advice for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from memsampd.exporters.advice import (
    MOST_PAIRED,
    Advice,
    Division,
    Misses,
    Pair,
    Portion,
    groups_of,
)
from memsampd.exporters.demand import Program
from memsampd.exporters.text import aligned
from memsampd.models.sizes import format_size
from memsampd.names import printable

VERSION = 1
_PAIRS_SHOWN = 10


def to_text(advice: Advice) -> str:
    """Return the advice as text of at most some 100 columns."""
    parts = [_cache_lines(advice), *_programs_lines(advice)]
    if advice.division is None:
        parts.append("one program alone: nothing to divide, nobody to keep apart\n")
    else:
        parts += [_division_lines(advice, advice.division), _schemata_lines(advice)]
        parts.append(_pair_lines(advice.pairs))
    return "\n".join(part for part in parts if part)


def to_document(advice: Advice) -> dict[str, Any]:
    """Return the advice as a JSON document; keys name their unit."""
    division = advice.division
    return {
        "version": VERSION,
        "cache": {
            "name": advice.cache.name,
            "size_bytes": advice.cache.size_bytes,
            "ways": advice.cache.ways,
            "domains": list(advice.cache.domains),
            "source": advice.cache.source,
        },
        "goal": advice.goal,
        "division": None if division is None else _division_document(advice, division),
        "pairs": [_pair_document(pair) for pair in advice.pairs],
        "not_known": _not_known(advice),
    }


def _division_document(advice: Advice, division: Division) -> dict[str, Any]:
    groups = groups_of(advice)
    return {
        "portions": [
            {
                "pids": list(group.pids),
                "names": [program.name for program in portion.programs],
                "ways": portion.ways,
                "size_bytes": portion.ways * advice.cache.way_bytes,
                "schemata": group.schemata,
                "undivided_misses_per_second": msgspec.to_builtins(portion.undivided),
                "divided_misses_per_second": msgspec.to_builtins(portion.divided),
                "slowdown": portion.slowdown,
            }
            for portion, group in zip(division.portions, groups, strict=True)
        ],
        "undivided_misses_per_second": msgspec.to_builtins(division.undivided),
        "divided_misses_per_second": msgspec.to_builtins(division.divided),
        "saved_share": dict(zip(("expected", "low", "high"), division.saved, strict=True)),
        "is_known_to_help": division.is_known_to_help,
    }


def _pair_document(pair: Pair) -> dict[str, Any]:
    return {
        "pids": [program.pid for program in pair.programs],
        "names": [program.name for program in pair.programs],
        "alone_miss_ratio": list(pair.alone),
        "shared_miss_ratio": [msgspec.to_builtins(one) for one in pair.shared],
        "added_misses_per_second": msgspec.to_builtins(pair.added),
        "is_known": pair.is_known,
    }


def _not_known(advice: Advice) -> list[str]:
    said = [
        f"{printable(program.label)} is left out: {_why_left_out(program)}"
        for program in advice.left_out
    ]
    if (quiet := len(advice.programs) - MOST_PAIRED) > 0:
        said.append(f"pairs of the {quiet} programs that would miss least")
    for program in (*advice.programs, *advice.left_out):
        said += [f"{printable(program.label)}: {warning}" for warning in program.warnings]
    for program in advice.programs:
        name = printable(program.label)
        if program.unknown_share >= 0.005:
            said.append(
                f"{name}: nothing is known of {program.unknown_share:.0%} of its CPU time; bounds "
                "take it to miss never or always"
            )
        if program.rate_known_share < 0.995:
            said.append(
                f"{name}: its access rate is modelled, within a factor of two or so, for "
                f"{1 - program.rate_known_share:.0%} of its CPU time"
            )
    return said


def _why_left_out(program: Program) -> str:
    if not program.demands:
        return "curve or access rate is not known of it"
    return "it is idle" if program.is_told_anew else "how much it runs was not told anew"


def _cache_lines(advice: Advice) -> str:
    cache = advice.cache
    several = len(cache.domains)
    note = f"; of {several} such caches, one is taken to serve all" if several > 1 else ""
    cpus = f", shared by CPUs {','.join(map(str, cache.cpus))}" if cache.cpus else ""
    return (
        f"{cache.name}: {format_size(cache.size_bytes)}, {cache.ways} ways of "
        f"{format_size(cache.way_bytes)}{cpus} (from {cache.source}){note}\n"
    )


def _programs_lines(advice: Advice) -> list[str]:
    said = _not_known(advice)
    return ["".join(f"not known: {line}\n" for line in said)] if said else []


def _division_lines(advice: Advice, division: Division) -> str:
    goals = {"misses": "the fewest misses in all", "fairness": "the least worst slowdown"}
    head = ["program", "ways", "size", "undivided M/s", "divided M/s", "slowdown"]
    rows = [_portion_row(portion, advice) for portion in division.portions]
    total = ["all", str(advice.cache.ways), format_size(advice.cache.size_bytes)]
    rows.append([*total, _millions(division.undivided), _millions(division.divided), ""])
    return (
        f"division with {goals[advice.goal]}; misses in millions a second\n"
        f"{aligned([head, *rows])}{_verdict(advice, division)}\n"
    )


def _portion_row(portion: Portion, advice: Advice) -> list[str]:
    names = ", ".join(printable(program.label) for program in portion.programs)
    size_bytes = portion.ways * advice.cache.way_bytes
    return [
        names if len(names) <= 32 else f"{names[:31]}…",
        str(portion.ways),
        format_size(size_bytes),
        _millions(portion.undivided),
        _millions(portion.divided),
        f"{portion.slowdown:.2f}",
    ]


def _verdict(advice: Advice, division: Division) -> str:
    expected, low, high = (100 * share for share in division.saved)
    bounds = f"({low:z.1f}..{high:z.1f} % at the curves' bounds)"
    if division.is_known_to_help:
        return f"saves {expected:z.1f} % of all misses {bounds}"
    if advice.goal == "misses" and high < 0.05:
        return f"not dividing the cache is as good: {expected:z.1f} % saved {bounds}"
    return f"not known to save misses: {expected:z.1f} % {bounds}"


def _schemata_lines(advice: Advice) -> str:
    is_good = advice.division is not None and advice.division.is_known_to_help
    how = "--apply" if is_good or advice.goal == "fairness" else "--apply --force"
    lines = [f"as resctrl takes it (memsampd advise {how} does it):"]
    for group in groups_of(advice):
        pids = " ".join(map(str, group.pids))
        lines.append(f"  memsampd-{group.name}/schemata  {group.schemata}  tasks of {pids}")
    return "\n".join(lines) + "\n"


def _pair_lines(pairs: Sequence[Pair]) -> str:
    head = ["pairs that share the cache, worst first", "alone", "together", "added M/s"]
    rows = [row for pair in pairs[:_PAIRS_SHOWN] for row in _pair_rows(pair)]
    more = len(pairs) - _PAIRS_SHOWN
    tail = f"and {more} pairs more, of less harm (--json has all)\n" if more > 0 else ""
    return aligned([head, *rows]) + tail


def _pair_rows(pair: Pair) -> list[list[str]]:
    added = _millions(pair.added) if pair.is_known else f"{_millions(pair.added)} not known"
    rows = []
    for index, program in enumerate(pair.programs):
        shared = pair.shared[index]
        is_last = index == len(pair.programs) - 1
        rows.append(
            [
                f"{'  ' if is_last else ''}{printable(program.label)}",
                f"{pair.alone[index]:.2%}",
                f"{shared.miss_ratio:.2%} ({shared.low:.1%}..{shared.high:.1%})",
                added if is_last else "",
            ]
        )
    return rows


def _millions(misses: Misses) -> str:
    expected, low, high = (1e-6 * each for each in (misses.expected, misses.low, misses.high))
    if high - low <= 0.1 * expected:
        return f"{expected:.2f}"
    return f"{expected:.2f} ({low:.2f}..{high:.2f})"
