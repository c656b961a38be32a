"""Does a replica reference what its target references?

usage: python benchmarks/replica_equality.py [--quick] [--json FILE] [--programs NAME...]

Every program of the catalogue, in two ways. *Pairs*: from one hold, translated code and single
steps, the (ip, address, size, is_write) rows compared one by one; threads that run besides are held
as well. *Stretches*: bursts that go over system calls, the registers of the target at each call
compared with those of the replica there; where other threads ran, once more with these held.

Goal: no pair differs, at least 50,000 instructions compared of each program, some of them in the
file that the program is about; and at least 95 % of the stretches of programs in which no other
thread ran are equal, where there were 20 or more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from memsampd.errors import CaptureError
from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
from programs.catalogue import find
from programs.equality import Comparison, hold_together
from programs.holding import others_held
from programs.preparing import PreparationError
from programs.running import WorkloadError, busiest_threads, running
from programs.workload import Workload
from verdict import add_options, finish

GOAL_INSTRUCTIONS = 50_000
QUICK_INSTRUCTIONS = 8_000
ACCESSES_A_RUN = 12_000
REHEARSAL_ACCESSES = 1_000_000
RUN_SECONDS = 5.0
TOTAL_SECONDS = 90.0
GOAL_EQUAL_STRETCHES = 0.95
FEWEST_STRETCHES = 20
ACCESSES_A_BURST = 200_000
BURSTS, QUICK_BURSTS = 60, 12
BURSTS_SECONDS = 30.0
_LOOK_SECONDS = 0.02


@dataclass
class Stretches:
    """Parts of bursts that end with a system call of the target's own.

    Attributes:
        bursts: bursts taken.
        plausible: bursts while which other threads could run.
        accesses: of all bursts.
        compared: stretches at whose end the target was looked at.
        equal: stretches at whose end its registers were the replica's.
        differed: bursts that ended because they were not.
        refusals: why there was no burst, by reason.
    """

    bursts: int = 0
    plausible: int = 0
    accesses: int = 0
    compared: int = 0
    equal: int = 0
    differed: int = 0
    refusals: Counter[str] = field(default_factory=Counter)

    def add(self, burst: Burst) -> None:
        """Count one burst."""
        self.bursts += 1
        self.plausible += burst.is_plausible
        self.accesses += burst.accesses
        self.compared += burst.calls_compared
        self.equal += burst.calls_equal
        self.differed += burst.end == BurstEnd.DIFFERED

    @property
    def equal_share(self) -> float | None:
        """Share of the stretches that were equal; None if there was none."""
        return self.equal / self.compared if self.compared else None

    def text(self) -> str:
        """As a cell of the table."""
        share = self.equal_share
        return "none" if share is None else f"{self.equal}/{self.compared} {share:.0%}"

    def is_bad(self) -> bool:
        """Whether too many differ though no other thread ran."""
        share = self.equal_share
        judged = share is not None and self.compared >= FEWEST_STRETCHES and not self.plausible
        return judged and share is not None and share < GOAL_EQUAL_STRETCHES


def take_stretches(pid: int, bursts: int, hold_all: bool = False) -> Stretches:
    """Take bursts of a process over system calls.

    Args:
        pid: the process.
        bursts: so many, or as many as half a minute has time for.
        hold_all: hold its other threads meanwhile.
    """
    found = Stretches()
    give_up = time.monotonic() + BURSTS_SECONDS
    with closing(ReplicaSource(pid)) as source:
        while found.bursts < bursts and time.monotonic() < give_up:
            for tid in busiest_threads(pid, _LOOK_SECONDS):
                with others_held(pid, tid) if hold_all else nullcontext():
                    try:
                        found.add(source.capture(BurstRequest(tid, ACCESSES_A_BURST)))
                    except CaptureError as error:
                        found.refusals[error.reason] += 1
    return found


@dataclass(frozen=True, slots=True)
class Equality:
    """What is known of one program.

    Attributes:
        pairs: translated runs against stepped ones.
        stretches: of bursts that hold one thread.
        held_stretches: of bursts that hold all threads; None where no other one ran.
    """

    pairs: Comparison
    stretches: Stretches
    held_stretches: Stretches | None

    def problem(self, instructions: int) -> str:
        """What is wrong; empty if nothing is."""
        if self.pairs.difference is not None:
            return "DIFFERENT"
        if self.pairs.instructions < instructions:
            return f"TOO FEW of {instructions} instructions"
        if not self.pairs.accesses_in_code:
            return "NOT IN ITS CODE"
        is_bad = self.stretches.is_bad() or (self.held_stretches or Stretches()).is_bad()
        return "STRETCHES DIFFER" if is_bad else ""


def measure(workload: Workload, instructions: int, bursts: int) -> Equality:
    """Compare one program in both ways."""
    with running(workload) as pid:
        pairs = hold_together(
            pid,
            workload.code,
            instructions=instructions,
            accesses_a_run=ACCESSES_A_RUN,
            run_seconds=RUN_SECONDS,
            total_seconds=TOTAL_SECONDS,
            rehearsal_accesses=REHEARSAL_ACCESSES,
        )
        stretches = take_stretches(pid, bursts)
        held = take_stretches(pid, bursts, hold_all=True) if stretches.plausible else None
    return Equality(pairs, stretches, held)


def judge(workload: Workload, instructions: int, bursts: int) -> dict[str, Any]:
    """Measure one program and print a line about it; what is known of it, "problem" if wrong."""
    if problem := workload.lacks():
        print(f"{workload.name:12} {problem}", flush=True)
        return {"problem": problem}
    try:
        found = measure(workload, instructions, bursts)
    except (PreparationError, WorkloadError) as error:
        print(f"{workload.name:12} {error}", flush=True)
        return {"problem": str(error)}
    pairs, problem = found.pairs, found.problem(instructions)
    share = pairs.accesses_in_code / pairs.accesses if pairs.accesses else 0.0
    clocks = f" ({pairs.clock_pairs} up to a look at the clock)" if pairs.clock_pairs else ""
    held = found.held_stretches.text() if found.held_stretches else "-"
    refusals = pairs.refusals + found.stretches.refusals
    print(
        f"{workload.name:12} {pairs.pairs:6d} {pairs.instructions:12d} {pairs.accesses:9d} "
        f"{share:7.0%} {found.stretches.text():>14} {held:>14}  {problem or 'equal'}{clocks}"
        f"{f'; refused: {dict(refusals)}' if refusals else ''}",
        flush=True,
    )
    if pairs.difference is not None:
        print(pairs.difference, flush=True)
    return {
        # asdict would count the pairs of a Counter
        "pairs": {**asdict(pairs), "ends": dict(pairs.ends), "refusals": dict(pairs.refusals)},
        "stretches": _as_json(found.stretches),
        "held_stretches": found.held_stretches and _as_json(found.held_stretches),
        "problem": problem,
    }


def _as_json(stretches: Stretches) -> dict[str, Any]:
    return {**asdict(stretches), "refusals": dict(stretches.refusals)}


def main() -> int:
    """Compare all programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add_options(parser, f"{QUICK_INSTRUCTIONS} instructions")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME", help="these only")
    args = parser.parse_args()
    try:
        workloads = find(args.programs)
    except KeyError as error:
        parser.error(f"no program {error}; see benchmarks/list_programs.py")
    instructions = QUICK_INSTRUCTIONS if args.quick else GOAL_INSTRUCTIONS
    bursts = QUICK_BURSTS if args.quick else BURSTS
    print(
        f"{'program':12} {'pairs':>6} {'instructions':>12} {'accesses':>9} {'in code':>7} "
        f"{'stretches':>14} {'all held':>14}"
    )
    results = {each.name: judge(each, instructions, bursts) for each in workloads}
    wrong = [name for name, result in results.items() if result["problem"]]
    return finish(args.json, results, wrong)


if __name__ == "__main__":
    sys.exit(main())
