"""What a session costs memsampd itself: CPU time of its processes, by part.

usage: python benchmarks/session_cost.py [--quick] [--json FILE] [--after SECONDS --seconds SECONDS]
                                         [--small-pages] [-- PROGRAM ARGUMENT...]

The bundled example, or a program, is observed as ``memsampd attach`` does by default. What is done
for it is timed call by call (CPU time of the calling thread, without what called parts take), what
is done before the first turn as a whole: in an editable install that includes what builds it anew,
some 40 ms. Goals: the start takes 0.15 s, a turn 2 ms on the average,
everything that follows from it included. Exit status 1 if one is missed.

With ``--after``, what comes from so many seconds after the attach on is told, of the endless
programs of cost_turns.py if no program is named, and for so many seconds (``--seconds``). Goal:
memsampd's processes use at most 3 % of the target's CPU time. With ``--small-pages`` memsampd's own
heap does not lie in huge pages, for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memsampd.cli.environment import ONE_THREAD, use_one_thread
from memsampd.daemon.attach import attached
from memsampd.daemon.branches import MappedBranches
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.daemon.pipeline import Pipeline
from memsampd.daemon.session import Session
from memsampd.daemon.tracer import TracerThread
from memsampd.demo.program import compile_demo
from memsampd.estimate.estimator import Estimator
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.unseen import UnseenCode
from memsampd.phases.windows import WindowCutter
from memsampd.sampler.clock.progress import ProgressClock
from memsampd.sampler.perf.watchpoints import Watchpoints
from memsampd.sampler.replica.source import ReplicaSource
from memsampd.sampler.spacing import DataSpacing
from targets import endless
from verdict import add_options, finish

START_GOAL_SECONDS = 0.15
TURN_GOAL_SECONDS = 0.002
LATER_GOAL = 0.03  # own CPU time of the target's, later on
LATER_SECONDS = 20.0
SMALL_PAGES = "--small-pages"
WITH_OWN_HEAP = f"""
import os, runpy, sys
from memsampd import _core
if {SMALL_PAGES!r} not in sys.argv: _core.use_huge_pages()
del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PARTS: dict[str, tuple[tuple[type, str], ...]] = {
    "turns: reading samples": ((MappedBranches, "read"), (MappedBranches, "latest")),
    "turns: windows, phases": (
        (WindowCutter, "bins"),
        (WindowCutter, "add"),
        (LeaderFollower, "assign"),
        (UnseenCode, "add"),
        (Pipeline, "_end_window"),
    ),
    "turns: spacing of data": ((DataSpacing, "add"), (DataSpacing, "between")),
    "turns: clock": tuple((ProgressClock, name) for name in ("add", "measure", "rates")),
    "turns: estimate": tuple(
        (Estimator, name)
        for name in ("add", "scatter", "possible_rates", "contradicts", "present_rate", "finish")
    ),
    "turns: planning": ((Pipeline, "_plan"),),
    "turns: watchpoints": tuple((Watchpoints, name) for name in ("poll", "start", "suspend")),
    "turns: the rest": ((Session, "step"), (Session, "finish")),
    "state, to be shown": ((Session, "snapshot"), (Session, "publish")),
    "bursts: tracing": ((ReplicaSource, "_burst"),),
    "bursts: expanding, counting": ((ReplicaSource, "_hand_over"),),
    "bursts: the rest": ((TracerThread, "_take_or_tell"),),
}


@dataclass(slots=True)
class Account:
    """CPU time of one part.

    Attributes:
        calls: how often it was called from elsewhere.
        seconds: without what it has other parts do.
    """

    calls: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Accounts:
    """CPU time by part, of all threads; each part is added to by one of them."""

    parts: dict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    _stack: threading.local = field(default_factory=threading.local)

    def observe(self) -> None:
        """Time all parts from now on."""
        for part, methods in PARTS.items():
            for owner, name in methods:
                setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            stack = self._stack.__dict__.setdefault("others", [])
            stack.append(0.0)
            account, before = self.parts[part], time.thread_time()
            try:
                result = method(*args, **options)
                # Of a thread of the core, which has ended by now.
                account.seconds += getattr(result, "tracer_cpu_seconds", 0.0)
                return result
            finally:
                taken = time.thread_time() - before
                account.calls += 1
                account.seconds += taken - stack.pop()
                if stack:
                    stack[-1] += taken

        return call


@dataclass(frozen=True, slots=True)
class Costs:
    """What a session cost, CPU seconds.

    Attributes:
        start: before the first turn, imports included.
        target: of the target meanwhile.
        total: of memsampd's processes.
        replica: of these, the replica.
        bursts: taken.
        turns: taken, looks for new code between them among these.
        without_curve: share of the target's CPU time in code that no burst has seen.
        parts: the rest by part.
    """

    start: float
    target: float
    total: float
    replica: float
    bursts: int
    turns: int
    without_curve: float
    parts: dict[str, Account]

    @property
    def a_turn(self) -> float:
        """Of a turn on the average, with what follows from it."""
        spent = sum(each.seconds for name, each in self.parts.items() if name.startswith("turns"))
        return spent / max(self.turns, 1)


def measure(
    accounts: Accounts, command: list[str], after: float | None = None, seconds: float | None = None
) -> Costs:
    """Observe a program from its start, or from some seconds after it, for so long at most."""
    accounts.parts.clear()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    config = SessionConfig(duration_seconds=seconds)
    before: list[Costs] = []
    try:
        with attached(process.pid, config, OutputConfig(listen="127.0.0.1:0")) as session:
            start = time.process_time()
            if after is not None:
                timer = threading.Timer(after, lambda: before.append(_so_far(session, accounts)))
                timer.daemon = True
                timer.start()
            session.run()
            costs = replace(_so_far(session, accounts), start=start)
    finally:
        process.kill()
        process.wait()
    return since(before[0], costs) if before else costs


def _so_far(session: Session, accounts: Accounts) -> Costs:
    state = session.snapshot()
    overhead, estimate = state.overhead, state.estimate
    return Costs(
        start=0.0,
        target=overhead.target_cpu_seconds,
        total=overhead.own_cpu_seconds,
        replica=overhead.replica_cpu_seconds,
        bursts=sum(state.burst_ends.values()),
        turns=accounts.parts["turns: reading samples"].calls,
        without_curve=estimate.unknown_cpu_seconds / max(estimate.cpu_seconds, 1e-9),
        parts={name: replace(accounts.parts[name]) for name in PARTS},
    )


def since(before: Costs, costs: Costs) -> Costs:
    """What was added; the start had been before."""
    parts = {
        name: Account(
            each.calls - before.parts[name].calls, each.seconds - before.parts[name].seconds
        )
        for name, each in costs.parts.items()
    }
    return Costs(
        start=0.0,
        target=costs.target - before.target,
        total=costs.total - before.total,
        replica=costs.replica - before.replica,
        bursts=costs.bursts - before.bursts,
        turns=costs.turns - before.turns,
        without_curve=costs.without_curve,
        parts=parts,
    )


def rows(costs: Costs) -> list[str]:
    """The table."""
    in_parts = sum(each.seconds for each in costs.parts.values())
    lines = [f"{'part':30}{'calls':>8}{'CPU ms':>9}{'us each':>9}"]
    lines.append(f"{'start':30}{'':8}{1e3 * costs.start:9.1f}")
    for name, each in costs.parts.items():
        mean = 1e6 * each.seconds / max(each.calls, 1)
        lines.append(f"{name:30}{each.calls:8}{1e3 * each.seconds:9.1f}{mean:9.0f}")
    lines.append(f"{'replica':30}{costs.bursts:8}{1e3 * costs.replica:9.1f}")
    other = costs.total - costs.start - in_parts - costs.replica
    lines.append(f"{'other':30}{'':8}{1e3 * other:9.1f}")
    lines.append(
        f"{costs.total:.2f} s, {100 * costs.total / max(costs.target, 1e-9):.1f} % of the target's "
        f"{costs.target:.1f} s; {costs.bursts} bursts, {costs.turns} turns of "
        f"{1e3 * costs.a_turn:.2f} ms; {100 * costs.without_curve:.1f} % without a curve"
    )
    return lines


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add_options(parser, "one round of the example; later on, half as long")
    parser.add_argument("--after", type=float, help="seconds after the attach to count from")
    parser.add_argument("--seconds", type=float, help=f"then for so long ({LATER_SECONDS:g})")
    parser.add_argument(SMALL_PAGES, action="store_true", help="memsampd's own heap lies in these")
    parser.add_argument("program", nargs="*", help="what to observe in place of the example")
    args = parser.parse_args()
    accounts = Accounts()
    accounts.observe()
    if args.after is not None:
        return _later(accounts, args)
    command = args.program or [str(compile_demo()), "--rounds", "1" if args.quick else "3"]
    costs = measure(accounts, command)
    print("\n".join(rows(costs)))
    missed = [
        f"{name} takes {1e3 * value:.1f} ms, goal {1e3 * goal:g}"
        for name, value, goal in (
            ("the start", costs.start, START_GOAL_SECONDS),
            ("a turn", costs.a_turn, TURN_GOAL_SECONDS),
        )
        if value > goal
    ]
    return finish(args.json, told(costs), missed)


def _later(accounts: Accounts, args: argparse.Namespace) -> int:
    """Measure from some seconds after the attach on, print and judge."""
    seconds = args.seconds or (LATER_SECONDS / 2 if args.quick else LATER_SECONDS)
    if not args.program:
        return _each_later(args, seconds)
    costs = measure(accounts, args.program, args.after, args.after + seconds)
    print(f"{' '.join(args.program)}, from {args.after:g} s on:", *rows(costs), "", sep="\n")
    share = costs.total / max(costs.target, 1e-9)
    missed = f"own CPU time {100 * share:.1f} %, goal {100 * LATER_GOAL:g}"
    return finish(args.json, told(costs), [missed] if share > LATER_GOAL else [])


def _each_later(args: argparse.Namespace, seconds: float) -> int:
    """Do that with all endless programs, each in a process of its own, which its session pays."""
    found: dict[str, object] = {}
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "costs.json"
        options = [f"--after={args.after}", f"--seconds={seconds}", f"--json={one}"]
        options += [SMALL_PAGES] * args.small_pages
        for name in endless.WORK:
            program = (sys.executable, endless.__file__, name)
            one.unlink(missing_ok=True)  # that of the program before
            if call_with_own_heap(__file__, *options, "--", *program):
                missed.append(f"of {name}, see above")
            if one.exists():
                found[name] = json.loads(one.read_text("utf-8"))
    return finish(args.json, found, missed)


def call_with_own_heap(*arguments: str) -> int:
    """Run this in a process whose memory lies as that of ``memsampd attach``; its exit status."""
    return subprocess.call((sys.executable, "-c", WITH_OWN_HEAP, *arguments))


def told(costs: Costs) -> dict[str, object]:
    """For programs."""
    parts = {name: [each.calls, each.seconds] for name, each in costs.parts.items()}
    return {name: getattr(costs, name) for name in Costs.__slots__} | {"parts": parts}


if __name__ == "__main__":
    if ONE_THREAD not in os.environ:  # both before numpy is loaded: as memsampd's main() has it
        use_one_thread()
        sys.exit(call_with_own_heap(*sys.argv))
    sys.exit(main())
