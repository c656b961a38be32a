"""Do shadows that are translated reference what single-stepped ones of the same stop reference?

usage: python benchmarks/shadow_equality.py [--quick] [--json FILE] [--programs NAME...]

Every program of the catalogue, pair after pair of shadows of one stop, the (ip, address, size,
is_write) rows compared one by one. Goal: no difference, at least 50,000 instructions compared for
each program, some of them in the file that the program is about.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memsampd.sampler.shadow.stepping import SteppingExecutor
from programs.catalogue import find
from programs.executors import add_option, make_executor
from programs.preparing import PreparationError
from programs.running import WorkloadError, running
from programs.twins import Comparison, hold_together
from programs.workload import Workload

GOAL_INSTRUCTIONS = 50_000
QUICK_INSTRUCTIONS = 8_000
ACCESSES_A_BURST = 12_000
REHEARSAL_ACCESSES = 1_000_000
BURST_SECONDS = 5.0
TOTAL_SECONDS = 90.0


def measure(workload: Workload, executor: str, instructions: int) -> Comparison:
    """Compare pairs of one program."""
    with running(workload) as pid:
        return hold_together(
            pid,
            workload.code,
            make_executor(executor),
            SteppingExecutor(),
            instructions=instructions,
            accesses_a_burst=ACCESSES_A_BURST,
            burst_seconds=BURST_SECONDS,
            total_seconds=TOTAL_SECONDS,
            rehearsal_accesses=REHEARSAL_ACCESSES,
        )


def verdict(comparison: Comparison, instructions: int) -> str:
    """What is wrong with one program; empty if nothing is."""
    if comparison.difference is not None:
        return "DIFFERENT"
    if comparison.instructions < instructions:
        return f"TOO FEW of {instructions} instructions"
    return "" if comparison.accesses_in_code else "NOT IN ITS CODE"


def judge(workload: Workload, executor: str, instructions: int) -> dict[str, Any]:
    """Measure one program and print a line about it; what is known of it, "problem" if wrong."""
    if problem := workload.lacks():
        print(f"{workload.name:12} {problem}", flush=True)
        return {"problem": problem}
    try:
        comparison = measure(workload, executor, instructions)
    except (PreparationError, WorkloadError) as error:
        print(f"{workload.name:12} {error}", flush=True)
        return {"problem": str(error)}
    problem = verdict(comparison, instructions)
    share = comparison.accesses_in_code / comparison.accesses if comparison.accesses else 0.0
    clocks = (
        f" ({comparison.clock_pairs} up to a look at the clock)" if comparison.clock_pairs else ""
    )
    ends = ", ".join(f"{count} {end}" for end, count in comparison.ends.most_common(3))
    print(
        f"{workload.name:12} {comparison.pairs:6d} {comparison.instructions:12d} "
        f"{comparison.accesses:9d} {share:7.0%}  {problem or 'equal'}{clocks}; ended: {ends}",
        flush=True,
    )
    if comparison.difference is not None:
        print(comparison.difference, flush=True)
    # asdict would count the pairs of a Counter
    counters = {"ends": dict(comparison.ends), "refusals": dict(comparison.refusals)}
    return {**asdict(comparison), **counters, "problem": problem}


def main() -> int:
    """Compare all programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_INSTRUCTIONS} instructions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME", help="these only")
    add_option(parser)
    args = parser.parse_args()
    try:
        workloads = find(args.programs)
    except KeyError as error:
        parser.error(f"no program {error}; see benchmarks/list_programs.py")
    instructions = QUICK_INSTRUCTIONS if args.quick else GOAL_INSTRUCTIONS
    print(f"{'program':12} {'pairs':>6} {'instructions':>12} {'accesses':>9} {'in code':>7}")
    results = {w.name: judge(w, args.executor, instructions) for w in workloads}
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    wrong = [name for name, result in results.items() if result["problem"]]
    print(f"goal (all equal): {'MISSED by ' + ', '.join(wrong) if wrong else 'met'}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
