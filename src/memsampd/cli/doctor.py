"""``memsampd doctor``: what works here, what does not, and what to do about it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from memsampd.names import printable

if TYPE_CHECKING:
    from memsampd.machines.diagnosis import Diagnosis
    from memsampd.machines.findings import Finding
    from memsampd.sampler.perf.costs import SamplingCost

_COLORS = {"ok": "\x1b[32m", "limited": "\x1b[33m", "no": "\x1b[31m"}
_WIDTH_MIN = 60


class Doctor:
    """Tell what this machine and this user can do, and whether a process can be observed."""

    name = "doctor"
    help = "tell what works on this machine, and why the rest fails"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "pid", nargs="?", metavar="PID", help="also check whether this process can be observed"
        )
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")

    def run(self, args: argparse.Namespace) -> int:
        """Print the diagnosis.

        Returns:
            0 if a process can be attached to (the one that was named, if one was), else 1.
        """
        from memsampd.machines.diagnosis import diagnose, gather_evidence
        from memsampd.machines.findings import State
        from memsampd.sampler.perf.ticks import TickSource

        evidence = gather_evidence()
        diagnosis, cost = diagnose(evidence), evidence.trials.sampling_cost
        by_ticks = diagnosis.branch_source == TickSource.name
        target = _diagnosed(args.pid, cost, by_ticks=by_ticks) if args.pid is not None else ()
        works = diagnosis.works and all(finding.state is not State.NO for finding in target)
        if args.json:
            report = as_json(diagnosis, target, works)
            sys.stdout.write(json.dumps(report, indent=2) + "\n")
        else:
            width = max(shutil.get_terminal_size().columns, _WIDTH_MIN)
            findings = (*diagnosis.findings, *target)
            sys.stdout.write(as_table(findings, width, color=sys.stdout.isatty()))
        return 0 if works else 1


def _diagnosed(pid: str, sampling_cost: SamplingCost, *, by_ticks: bool) -> tuple[Finding, ...]:
    from memsampd.daemon.config import SessionConfig
    from memsampd.daemon.pipeline_parts import burst_shape
    from memsampd.machines.target_diagnosis import diagnose_target

    config = SessionConfig()
    period_seconds = config.sampling_period_seconds(sampling_cost)
    usual = burst_shape(config.burst_accesses).usual_accesses
    return diagnose_target(
        pid,
        usual,
        config.max_stop_seconds,
        period_seconds,
        config.budget_share,
        by_ticks=by_ticks,
    )


def as_json(diagnosis: Diagnosis, target: Iterable[Finding], works: bool) -> dict[str, Any]:
    """The diagnosis as an object for json."""
    import msgspec

    return {
        "works": works,
        "branch_source": diagnosis.branch_source,
        "access_source": diagnosis.access_source,
        "clock": diagnosis.clock,
        "machine": msgspec.to_builtins(diagnosis.machine),
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "target": [asdict(finding) for finding in target],
    }


def as_table(findings: Iterable[Finding], width: int, color: bool = False) -> str:
    """The findings as text, one below the other, remedies on lines of their own.

    Args:
        findings: what to show.
        width: characters in a line.
        color: mark states with terminal colours.
    """
    findings = tuple(findings)
    name_width = max(len(finding.name) for finding in findings)
    state_width = max(len(state) for state in _COLORS)
    indent = " " * (name_width + state_width + 4)
    lines = []
    for finding in findings:
        state = f"{finding.state:<{state_width}}"
        if color:
            state = f"{_COLORS[finding.state]}{state}\x1b[0m"
        body = _wrap(finding.detail, width - len(indent)) or [""]
        if finding.remedy:
            body += _wrap(f"→ {finding.remedy}", width - len(indent))
        lines.append(f"{finding.name:<{name_width}}  {state}  {body[0]}")
        lines += [indent + line for line in body[1:]]
    return "\n".join(lines) + "\n"


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width, break_on_hyphens=False)


COMMAND = Doctor()
