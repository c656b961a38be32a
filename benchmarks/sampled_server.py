"""What branch samples take from a server under load, without bursts or walks.

A server is asked as fast as it can, in turns of a second in random order: alone; sampled all the
time; and sampled as a session does (``SamplingPlan``), for a part of the time. Its CPU time a
request, throughput, and the 99.9th percentile of times to an answer, by those of the same round
alone: medians, and 95 % intervals by bootstrap.

Of what a switch away takes the kernel charges most to whoever runs next: CPU time of the server has
about half, throughput all of it.

Goal: as a session does, at most 3 % more CPU time a request and 3 % less throughput. Exit status 1
if it is missed.
Run: ``python benchmarks/sampled_server.py [--server NAME] [--quick] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, closing
from typing import NamedTuple

import numpy as np

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.sampling import SamplingPlan
from memsampd.sampler.perf.costs import SamplingCost
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.perf.switches import SwitchCounter
from memsampd.sampler.process.cputime import process_cpu_ns
from targets.servers import SERVERS, Served, Start
from verdict import add_options, finish

WAYS = ("alone", "all the time", "as a session does")
ROUNDS, QUICK_ROUNDS = 40, 12
SECONDS = 1.0
RESAMPLES = 2000
MOST = 0.03


class Turn(NamedTuple):
    """One turn: of requests CPU seconds, a second, times to an answer; what samples are charged."""

    cpu_seconds: float
    rate: float
    p999_seconds: float
    charged_share: float
    sampled_share: float


class Source(NamedTuple):
    """What samples a server."""

    branches: TaskClockSource
    plan: SamplingPlan


def source_of(pid: int, way: str, cost: SamplingCost, stack: ExitStack) -> Source:
    """Sample all the time, or as is allowed; what is sampled is thrown away."""
    branches = stack.enter_context(closing(TaskClockSource(pid)))
    allowed = SessionConfig().budget_share if way == WAYS[2] else 1e9
    plan = SamplingPlan(branches, cost, allowed, SwitchCounter(pid))
    # By what its threads did in their life so far; so that the next look is due after a second.
    plan.look(time.monotonic() - SECONDS / 2, 0.0)
    return Source(branches, plan)


def turn(served: Served, way: str, cost: SamplingCost) -> Turn:
    with ExitStack() as stack:
        source = None if way == WAYS[0] else source_of(served.pid, way, cost, stack)
        before_ns = process_cpu_ns(served.pid)
        load = served.client.ask(SECONDS)
        cpu_seconds = (process_cpu_ns(served.pid) - before_ns) * 1e-9
        charged, share = 0.0, 0.0
        if source is not None:
            share = source.branches.share
            charged = source.plan.look(time.monotonic(), cpu_seconds).seconds
        return Turn(
            cpu_seconds / load.requests, load.rate, load.p999_seconds, charged / cpu_seconds, share
        )


def measure(name: str, rounds: int) -> dict[str, list[Turn]]:
    """Turns of each way, a round at the same place of each list."""
    server = next(each for each in SERVERS if each.name == name)
    found: dict[str, list[Turn]] = defaultdict(list)
    rng = random.Random(1)
    with server.started(Start(is_small=True)) as served:
        served.client.ask(2 * SECONDS)
        for _ in range(rounds):
            for way in rng.sample(WAYS, len(WAYS)):
                found[way].append(turn(served, way, SamplingCost.measure()))
    return found


def change(mine: list[float], alone: list[float]) -> tuple[float, float, float]:
    """Median of the relative differences, and its 95 % interval."""
    differences = np.array(mine) / np.array(alone) - 1
    rng = np.random.default_rng(1)
    picked = rng.integers(0, len(differences), (RESAMPLES, len(differences)))
    low, high = np.quantile(np.median(differences[picked], axis=1), (0.025, 0.975))
    return float(np.median(differences)), float(low), float(high)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what branch samples take from a server.")
    names = [each.name for each in SERVERS]
    parser.add_argument("--server", choices=names, default="redis", help="(default: redis)")
    add_options(parser, "fewer rounds")
    args = parser.parse_args()
    found = measure(args.server, QUICK_ROUNDS if args.quick else ROUNDS)
    told, missed = {}, []
    for way in WAYS[1:]:
        cpu, rate, late = (
            change([one[at] for one in found[way]], [one[at] for one in found[WAYS[0]]])
            for at in range(3)
        )
        charged = statistics.median(each.charged_share for each in found[way])
        share = statistics.median(each.sampled_share for each in found[way])
        told[way] = {
            "cpu": cpu,
            "rate": rate,
            "p999": late,
            "charged_share": charged,
            "sampled_share": share,
        }
        figures = ", ".join(
            f"{name} {100 * median:+.1f} % ({100 * low:+.1f} .. {100 * high:+.1f})"
            for name, (median, low, high) in (
                ("CPU time a request", cpu),
                ("throughput", rate),
                ("p99.9", late),
            )
        )
        print(f"{way} ({100 * share:.2g} % of it): {figures}, charged {100 * charged:.1f} %")
        if way == WAYS[2]:
            missed += ["CPU time"] if cpu[0] > MOST else []
            missed += ["throughput"] if rate[0] < -MOST else []
    return finish(args.json, told, missed)


if __name__ == "__main__":
    sys.exit(main())
