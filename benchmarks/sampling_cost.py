"""What the branch stream costs the program that it samples.

One CPU-bound program runs the same piece of work again and again and tells the CPU time of each;
pairs of pieces, one sampled and one not, in random order, lie next to each other in time and in
the same memory. The slowdown is the median over pairs of the ratio of their CPU times, less one.
Goal: at the default rate no more than 1 %.
Run: ``python benchmarks/sampling_cost.py [--quick] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import random
import select
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from memsampd.sampler.perf.source import TaskClockSource
from verdict import add_options, finish

GOAL_SLOWDOWN = 0.01
DEFAULT_HERTZ = 500
HERTZ = (DEFAULT_HERTZ, 1000, 2000, 4000)
PIECE_SECONDS = 0.03  # short, so that both of a pair meet the same noise
RECORD_BYTES = 32  # of one sample in the ring

# Walks 512 KiB in an odd order, so that interrupts also cost what they evict from the caches.
PROGRAM = """
import sys, time
import numpy as np
table = np.random.default_rng(1).permutation(1 << 16)
index = np.arange(1 << 12)
for line in sys.stdin:
    start = time.process_time_ns()
    for _ in range(int(line)):
        index = table[index]
    print(time.process_time_ns() - start, flush=True)
"""


@dataclass(frozen=True)
class Run:
    """One run of the program."""

    target_cpu_seconds: float
    own_cpu_seconds: float
    samples: int
    lost: int


@dataclass(frozen=True)
class Result:
    """What one rate costs.

    Attributes:
        hertz: samples a CPU second.
        slowdown: median over pairs of the ratio of CPU times, less 1.
        slowdown_quartiles: its first and third quartile.
        cost_per_sample_seconds: the slowdown divided by the rate.
        bytes_per_cpu_second: record bytes that the kernel wrote.
        own_cpu_share: our CPU time over the target's, opening the source for each piece left out.
        samples_per_cpu_second: samples that came.
        lost: samples lost in all runs.
        pairs: pairs of runs.
    """

    hertz: int
    slowdown: float
    slowdown_quartiles: tuple[float, float]
    cost_per_sample_seconds: float
    bytes_per_cpu_second: float
    own_cpu_share: float
    samples_per_cpu_second: float
    lost: int
    pairs: int


class Program:
    """The program, waiting for work."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.run(1, None)

    def run(self, rounds: int, hertz: int | None) -> Run:
        """Let it do a piece of work, sampled or not, and wait in the same way for both."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        source = TaskClockSource(child.pid, period_seconds=1 / hertz) if hertz else None
        own_start = time.process_time()
        child.stdin.write(f"{rounds}\n")
        child.stdin.flush()
        samples = lost = 0
        while not select.select([child.stdout], [], [], 0 if source else 0.1)[0]:
            if source:
                batch = source.read(0.1)
                samples, lost = samples + len(batch), lost + batch.lost
        target_cpu_seconds = int(child.stdout.readline()) * 1e-9
        if source:
            samples += len(source.read(0.0))
            source.close()
        return Run(target_cpu_seconds, time.process_time() - own_start, samples, lost)

    def close(self) -> None:
        """End it."""
        self._child.kill()
        self._child.communicate()


def measure(program: Program, rounds: int, hertz: int, pairs: int, order: random.Random) -> Result:
    """Measure one rate by paired runs."""
    ratios, sampled = [], []
    for _ in range(pairs):
        rates: list[int | None] = [None, hertz]
        order.shuffle(rates)
        runs = {rate: program.run(rounds, rate) for rate in rates}
        ratios.append(runs[hertz].target_cpu_seconds / runs[None].target_cpu_seconds)
        sampled.append(runs[hertz])
    first, median, third = statistics.quantiles(ratios, n=4, method="inclusive")
    cpu_seconds = sum(run.target_cpu_seconds for run in sampled)
    samples = sum(run.samples for run in sampled)
    return Result(
        hertz=hertz,
        slowdown=median - 1,
        slowdown_quartiles=(first - 1, third - 1),
        cost_per_sample_seconds=(median - 1) / hertz,
        bytes_per_cpu_second=samples * RECORD_BYTES / cpu_seconds,
        own_cpu_share=sum(run.own_cpu_seconds for run in sampled) / cpu_seconds,
        samples_per_cpu_second=samples / cpu_seconds,
        lost=sum(run.lost for run in sampled),
        pairs=pairs,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, "fewer and shorter runs")
    parser.add_argument("--pairs", type=int, help="pairs of runs for each rate")
    args = parser.parse_args()
    pairs = args.pairs or (60 if args.quick else 300)
    order = random.Random(1)
    program = Program()
    try:
        rounds = int(1000 * PIECE_SECONDS / program.run(1000, None).target_cpu_seconds)
        results = [measure(program, rounds, hertz, pairs, order) for hertz in HERTZ]
    finally:
        program.close()
    for result in results:
        low, high = result.slowdown_quartiles
        print(
            f"{result.hertz:5d} Hz: slowdown {result.slowdown:+.2%} (quartiles {low:+.2%}, "
            f"{high:+.2%}), {result.cost_per_sample_seconds * 1e6:.1f} us a sample, "
            f"{result.samples_per_cpu_second:.0f} samples/s, "
            f"{result.bytes_per_cpu_second / 1e3:.0f} kB/s, own CPU {result.own_cpu_share:.2%}, "
            f"lost {result.lost}, {result.pairs} pairs"
        )
    default = next(result for result in results if result.hertz == DEFAULT_HERTZ)
    goal = f"at most {GOAL_SLOWDOWN:.0%} at {DEFAULT_HERTZ} Hz"
    return finish(args.json, results, [] if default.slowdown <= GOAL_SLOWDOWN else [goal])


if __name__ == "__main__":
    sys.exit(main())
