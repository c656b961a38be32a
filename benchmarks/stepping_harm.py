"""What becomes of a target when who traces it is killed: why memsampd single-steps none.

A target that runs all the time is traced by a process that either interrupts it and lets it go
again, as memsampd does, or steps it instruction by instruction (``PTRACE_SINGLESTEP``). The tracer
gets SIGKILL at a random moment. A step ends with a SIGTRAP of the target itself, which the tracer
is to take away; once that is dead, it is delivered.

Goal: no target dies of a tracer that only interrupts, and all are traced. Exit status 1 if not.
Run: ``python benchmarks/stepping_harm.py [--quick] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

from verdict import add_options, finish

SEIZE, INTERRUPT, SINGLESTEP, CONT = 0x4206, 0x4207, 9, 7  # linux/ptrace.h
WALL = 0x40000000  # of waitpid(2): threads, too
TARGETS, QUICK_TARGETS = 100, 20
BEGIN_SECONDS, END_SECONDS = 0.05, 0.05
LEAST_SECONDS, MOST_SECONDS = 0.01, 0.02


def tracer_of(pid: int, *, steps: bool) -> int | None:
    """Start who traces a process; returns its id once it does, None if it may not."""
    reads, writes = os.pipe()
    tracer = os.fork()
    if tracer == 0:
        trace(pid, writes, steps=steps)
    os.close(writes)
    is_traced = os.read(reads, 1) != b""
    os.close(reads)
    if not is_traced:
        os.waitpid(tracer, 0)
    return tracer if is_traced else None


def trace(pid: int, told: int, *, steps: bool) -> None:
    """Interrupt a process again and again, or once and step it from then on; never returns.

    It writes a byte once it traces the process, and ends if it may not.
    """
    ptrace = ctypes.CDLL(None).ptrace
    ptrace.argtypes = [ctypes.c_long] * 4
    if ptrace(SEIZE, pid, 0, 0):
        os._exit(1)
    os.write(told, b"s")
    request = INTERRUPT
    while True:
        ptrace(request, pid, 0, 0)
        os.waitpid(pid, WALL)
        if steps:
            request = SINGLESTEP
        else:
            ptrace(CONT, pid, 0, 0)


def ending(rng: random.Random, *, steps: bool) -> str:
    """What became of one target: the signal that ended it, "lives", or "was not traced"."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as target:
        time.sleep(BEGIN_SECONDS)
        tracer = tracer_of(target.pid, steps=steps)
        if tracer is None:
            target.kill()
            return "was not traced"
        time.sleep(rng.uniform(LEAST_SECONDS, MOST_SECONDS))
        os.kill(tracer, signal.SIGKILL)
        os.waitpid(tracer, 0)
        time.sleep(END_SECONDS)
        status = target.poll()
        target.kill()
    return "lives" if status is None else signal.Signals(-status).name


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill tracers, and see what becomes of targets.")
    add_options(parser, "fewer targets")
    args = parser.parse_args()
    rng, figures, missed = random.Random(1), [], []
    for steps in (False, True):
        count = QUICK_TARGETS if args.quick else TARGETS
        ends = Counter(ending(rng, steps=steps) for _ in range(count))
        what = "single-steps" if steps else "interrupts"
        print(
            f"the tracer {what}: of {count} targets "
            + ", ".join(f"{times} {end}" for end, times in ends.items())
        )
        figures.append({"steps": steps, "ends": dict(ends)})
        if not steps and ends["lives"] + ends["was not traced"] < count:
            missed.append("a target died of a tracer that only interrupts")
        if ends["was not traced"]:
            missed.append(f"{ends['was not traced']} targets were not traced")
    return finish(args.json, figures, missed)


if __name__ == "__main__":
    sys.exit(main())
