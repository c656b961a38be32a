"""What it costs a program, or a server under load, to be observed by ``memsampd attach``.

usage: python benchmarks/cost.py [--quick] [--busy] [--rounds N] [--only NAME...] [--json FILE]
                                 [--resume] [--markdown FILE] [--memsampd PATH] [--other PATH]

Each round runs a target alone and observed, in changing order, by one or two installations. Of
programs started on their own (20 s each) it compares wall time, CPU time, page faults and peak
memory as wait4 has them; of servers the throughput while clients ask as fast as they can, CPU time
a request, faults, memory, and the times to an answer, there and at a quarter of that rate.
``charged`` is what memsampd itself says that it took: holds, hits, samples, time of busy CPUs.
--busy keeps every CPU busy besides. Ten rounds take hours: a run that is broken off goes on,
--json FILE --resume, and --rounds 0 of it prints what there is, or puts it into docs/cost.md.

Goals, for medians over pairs: wall and CPU time at most 2 % more; page faults and memory never
more; memsampd's CPU time at most 5 % of the target's; charged of programs within a factor of 1.5
of what was lost, where that stands out of the noise (idle machine); p99.9 at most 5 ms later;
throughput at most 2 % less; a burst at least; and all of these measured. Exit status 1 if one is
missed. The other installation is measured, not judged.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from programs.workload import environment, find_program
from reference.documents import made_text, replace_section
from targets import comparing, options
from targets.agent import Observation, first_seconds, observing
from targets.comparing import Figures, Row
from targets.launching import (
    LaunchError,
    available_bytes,
    busy_seconds,
    every_cpu_busy,
    forget_peak,
    launched,
    read_counters,
    read_memory_bytes,
)
from targets.programs import PROGRAMS, Program
from targets.rows import PACED_SHARE, page, program_rows, server_rows
from targets.servers import SERVERS, Load, Served, Server, Start
from verdict import finish

SPARE_BYTES = 1 << 30
ROUNDS, QUICK_ROUNDS = 10, 2
JUDGED_SERVERS = ("redis", "postgres", "nginx")
# Lead-in that is not counted, as fast as can be, at a given rate: a server that waits for its
# client half of the time uses 20 s of CPU time, too.
TURN_SECONDS, QUICK_TURN_SECONDS = (5.0, 40.0, 15.0), (3.0, 3.0, 3.0)


@contextmanager
def watched(
    memsampd: Path | None, pid: int, given: Sequence[str] = ()
) -> Iterator[Observation | None]:
    """Observe a process, with these options of ``memsampd attach``, or leave it alone."""
    if memsampd is None:
        yield None
        return
    with observing(memsampd, pid, options=given) as observation:
        yield observation


def agent_figures(observation: Observation | None, target_cpu_seconds: float) -> Figures:
    """Return what a run of memsampd came to."""
    if observation is None or observation.usage is None:
        return {}
    last = observation.last
    return {
        "own_share": observation.usage.cpu_seconds / target_cpu_seconds,
        "later_own_share": observation.shares_after().own,
        "charged_share": last.charged_share,
        "bursts": last.bursts,
        "accesses_a_burst": last.sampled_accesses / last.bursts if last.bursts else None,
        "l1d_width": last.width("L1d"),
        "l2_width": last.width("L2"),
        "first_seconds": first_seconds(observation.answers),
    }


def run_program(command: Sequence[str], memsampd: Path | None) -> tuple[Figures, dict[str, Any]]:
    """Run a program once; returns its figures and the rest of what is known.

    Raises:
        LaunchError: it failed, or memsampd did.
    """
    start, others = time.monotonic(), others_seconds(0.0)
    with launched(command, environment()) as program:
        with watched(memsampd, program.pid) as observation:
            usage = program.wait()
        others = others_seconds(usage.cpu_seconds, observation) - others
        if usage.status != 0:
            raise LaunchError(f"{command[0]} ended with status {usage.status}")
    figures: Figures = {
        "wall_seconds": usage.wall_seconds,
        "cpu_seconds": usage.cpu_seconds,
        "children_cpu_seconds": usage.children_cpu_seconds,
        "minor_faults": usage.minor_faults,
        "major_faults": usage.major_faults,
        "peak_bytes": usage.peak_bytes,
        "others_share": others / (time.monotonic() - start),
    }
    own_seconds = usage.cpu_seconds - usage.children_cpu_seconds
    return figures | agent_figures(observation, own_seconds), details(observation)


def others_seconds(known_seconds: float, observation: Observation | None = None) -> float:
    """Return the CPU time of all but the processes known, memsampd's and ourselves.

    Other programs disturb: a figure counts if they took next to nothing. (The loops of --busy and
    the other processes of PostgreSQL are among them.)
    """
    used = observation.usage.cpu_seconds if observation and observation.usage else 0.0
    return busy_seconds() - known_seconds - used - time.process_time()


def details(observation: Observation | None) -> dict[str, Any]:
    """Return what is kept of an observation beside its figures."""
    if observation is None:
        return {}
    return {"last": asdict(observation.last), "said": observation.said}


def run_turn(
    served: Served, memsampd: Path | None, seconds: tuple[float, float, float], rate: float
) -> tuple[Figures, dict[str, Any]]:
    """Let a server be asked for a turn; returns figures and the rest, as ``run_program`` does.

    Args:
        served: the server.
        memsampd: what observes it meanwhile.
        seconds: lead-in, as fast as can be, paced.
        rate: of the paced part, requests a second.
    """
    lead_in, fast_seconds, paced_seconds = seconds
    forget_peak(served.pid)
    start, first = time.monotonic(), read_counters(served.pid)
    others = others_seconds(first.cpu_seconds + read_counters(served.client.pid).cpu_seconds)
    with watched(memsampd, served.pid) as observation:
        served.client.ask(lead_in)
        before = read_counters(served.pid)
        fast = served.client.ask(fast_seconds)
        after = read_counters(served.pid)
        paced = served.client.ask(paced_seconds, rate)
    last = read_counters(served.pid)
    both_seconds = last.cpu_seconds + read_counters(served.client.pid).cpu_seconds
    others = others_seconds(both_seconds, observation) - others
    figures: Figures = {
        "rate": fast.rate,
        "slowest_second": fast.slowest_second,
        "cpu_a_request": (after.cpu_seconds - before.cpu_seconds) / fast.requests,
        "failed": fast.failed + paced.failed,
        "minor_faults": last.minor_faults - first.minor_faults,
        "major_faults": last.major_faults - first.major_faults,
        "peak_bytes": read_memory_bytes(served.pid, "VmHWM"),
        "children_cpu_seconds": last.children_cpu_seconds - first.children_cpu_seconds,
        "others_share": others / (time.monotonic() - start),
        **latencies("fast", fast),
        **latencies("paced", paced),
    }
    cpu_seconds = last.cpu_seconds - first.cpu_seconds
    return figures | agent_figures(observation, cpu_seconds), details(observation)


def latencies(name: str, load: Load) -> Figures:
    """Return a load's times to an answer."""
    return {
        f"{name}_p50_seconds": load.p50_seconds,
        f"{name}_p99_seconds": load.p99_seconds,
        f"{name}_p999_seconds": load.p999_seconds,
        f"{name}_worst_seconds": load.worst_seconds,
    }


_Runner = Callable[[Path | None], tuple[Figures, dict[str, Any]]]
# One round of a target, as it is kept: "figures" and "details" by variant.
_Kept = dict[str, dict[str, Any]]


def one_round(run: _Runner, installations: dict[str, Path], number: int) -> _Kept:
    """Run a target in turns; each round begins with another variant than the one before."""
    kept: _Kept = {"figures": {}, "details": {}}
    for name, memsampd in options.in_turn(installations, number):
        kept["figures"][name], kept["details"][name] = run(memsampd)
    return kept


def measure(
    target: Program | Server, installations: dict[str, Path], number: int, quick: bool
) -> _Kept:
    """Measure one round of a target.

    Raises:
        LaunchError: it failed, or memsampd did.
    """
    if isinstance(target, Program):
        command = target.command(quick)
        return one_round(lambda memsampd: run_program(command, memsampd), installations, number)
    seconds = QUICK_TURN_SECONDS if quick else TURN_SECONDS
    with target.started(Start(quick)) as served:
        rate = PACED_SHARE * served.client.ask(seconds[0]).rate
        return one_round(
            lambda memsampd: run_turn(served, memsampd, seconds, rate), installations, number
        )


def lacking(target: Program | Server, quick: bool) -> str:
    """Say why a target cannot be had here; empty if it can."""
    if isinstance(target, Server):
        return target.lacks()
    if target.memory_bytes(quick) + SPARE_BYTES > available_bytes():
        return f"needs {target.memory_bytes(quick) >> 20} MiB of memory"
    program = target.command(quick)[0]
    return "" if find_program(program) else f"not installed: {program}"


TARGETS: tuple[Program | Server, ...] = (
    *PROGRAMS,
    *(server for server in SERVERS if server.name in JUDGED_SERVERS),
)


EVERY: tuple[Program | Server, ...] = (*PROGRAMS, *SERVERS)
BY_NAME = {each.name: each for each in EVERY}


def find(names: Sequence[str]) -> list[Program | Server]:
    """Return the targets of these names, servers that are not judged by default among them."""
    return [BY_NAME[name] for name in names] if names else list(TARGETS)


def rows_of(target: Program | Server, is_busy: bool) -> list[Row]:
    """Return what is told of a target."""
    return (server_rows if isinstance(target, Server) else program_rows)(is_busy)


def report(
    target: Program | Server, kept: list[_Kept], variants: Sequence[str], args: argparse.Namespace
) -> list[str]:
    """Print a target's table; returns what was missed."""
    rows = rows_of(target, args.busy)
    what = target.told(args.quick) if isinstance(target, Program) else target.what
    rounds = [each["figures"] for each in kept]
    titles = comparing.report(f"{target.name}: {what}", rows, rounds, variants)
    return [f"{target.name}: {title}" for title in titles]


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    read = options.parser(__doc__, list(BY_NAME), "small targets, 2 rounds")
    read.add_argument("--rounds", type=int, metavar="N")
    read.add_argument("--resume", action="store_true", help="go on from the file of --json")
    read.add_argument("--markdown", type=Path, metavar="FILE", help="put the table there")
    return read


def kept_before(args: argparse.Namespace, setting: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept: the setting, the rounds of each target, and when and of what these are.

    Raises:
        SystemExit: there is no file to go on from, or it is of other circumstances.
    """
    if args.resume and args.json is None:
        sys.exit("--resume goes on from the file of --json: say which")
    if not args.resume or not args.json.exists():
        return {"setting": setting, "targets": {}, "made": []}
    document: dict[str, Any] = json.loads(args.json.read_text())
    if document["setting"] != setting:
        sys.exit(f"{args.json} is of {document['setting']}, this would be {setting}")
    return document


def main(argv: list[str] | None = None) -> int:
    """Measure, print, judge."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with us
    installations = options.installations(args)
    usual = QUICK_ROUNDS if args.quick else ROUNDS
    count = usual if args.rounds is None else args.rounds
    setting = machine() | {"busy": args.busy, "quick": args.quick, "variants": [*installations]}
    document = kept_before(args, setting)
    found: dict[str, list[_Kept]] = document["targets"]
    problems: dict[str, str] = {}
    targets = find(args.only)
    with every_cpu_busy(args.busy):
        # A slow hour is shared by all targets, and what is broken off has as much of each.
        for number, target in itertools.product(range(count), targets):
            rounds = found.setdefault(target.name, [])
            if len(rounds) > number or target.name in problems:
                continue
            try:
                if why := lacking(target, args.quick):
                    raise LaunchError(why)
                rounds.append(measure(target, installations, number, args.quick))
                document["made"] = list(dict.fromkeys((*document["made"], made_text())))
            except LaunchError as error:
                problems[target.name] = str(error)
            print(f"{time.strftime('%H:%M:%S')} {target.name}: {len(rounds)}", file=sys.stderr)
            if args.json:
                args.json.write_text(json.dumps(document))
    told = [f"{name}: {why}" for name, why in problems.items()]
    for target in targets:
        rounds = found.get(target.name, [])
        if rounds or target.name not in problems:
            told += report(target, rounds, list(installations), args)
    if args.markdown:
        section = "cost busy" if args.busy else "cost"
        replace_section(args.markdown, section, page_of(targets, document, args.busy))
    return finish(args.json, document, told)


def page_of(targets: Sequence[Program | Server], document: dict[str, Any], is_busy: bool) -> str:
    """Return the table for a document, with what it is of."""
    tables = [
        (
            target.name,
            rows_of(target, is_busy),
            [each["figures"] for each in document["targets"].get(target.name, [])],
        )
        for target in targets
    ]
    return f"Measured {'; '.join(document['made'])}.\n\n{page(tables)}"


def machine() -> dict[str, Any]:
    """Return what figures depend on."""
    return {"cpus": os.cpu_count(), "kernel": platform.release()}


if __name__ == "__main__":
    sys.exit(main())
