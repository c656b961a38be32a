"""Observing programs that mean harm (``sources/hostile.c``): they and the observer must live."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from memsampd.sampler.replica.target import read_traits
from programs.observing import wait_until_clean
from programs.preparing import compiled

# Ways to do harm, by number; and one that draws another each time.
WAYS = 16
ALL_WAYS = 16

# Such as scripts/sanitized-python.
PYTHON = os.environ.get("MEMSAMPD_OBSERVER", sys.executable)

# Takes so many bursts, however they end, and tells how.
_OBSERVER = """
import sys, time
from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
pid, bursts = int(sys.argv[1]), int(sys.argv[2])
source = ReplicaSource(pid)
ends = {}
for number in range(bursts):
    request = BurstRequest(pid, (2000, 100000, 2000000)[number % 3], 0.02)
    try:
        if number % 2:
            end = source.count_lines(request, 64, _core.ReuseCounter()).end
        else:
            end = source.stream(request, lambda chunk: None).end
    except CaptureError as error:
        end = error.reason
        time.sleep(0.002)
    ends[str(end)] = ends.get(str(end), 0) + 1
source.close()
print(ends)
"""


def compiled_hostile(folder: Path) -> Path:
    """Compile it, unless that is done."""
    return compiled(folder, "hostile.c", "hostile", ("gcc", "-O1", "-pthread"))


def area_of(program: Path) -> int:
    """Where the translator's area of such a program will be: always at the same place."""
    with _running(program, 0, 9, 0) as process:
        try:
            return read_traits(process.pid).area_address
        finally:
            process.kill()


def _running(program: Path, area: int, way: int, seed: int) -> subprocess.Popen[str]:
    command = (str(program), hex(area), str(way), str(seed))
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def harm(
    program: Path, area: int, way: int, bursts: int, seed: int = 1
) -> tuple[dict[str, int], list[str]]:
    """Observe such a program from a process of its own.

    Args:
        program: the executable.
        area: what ``area_of`` says.
        way: what it does.
        bursts: so many are tried.
        seed: of what it draws.

    Returns:
        Bursts by their end, or by the reason why there was none; and what is wrong.
    """
    problems: list[str] = []
    ends: dict[str, int] = {}
    with _running(program, area, way, seed) as process:
        try:
            command = [PYTHON, "-c", _OBSERVER, str(process.pid), str(bursts)]
            observer = subprocess.run(command, capture_output=True, text=True, check=False)
            if observer.returncode != 0:
                problems.append(f"observer: {observer.returncode} {observer.stderr[-3000:]}")
            else:
                ends = ast.literal_eval(observer.stdout)
            problems += [f"left: {text}" for text in wait_until_clean(process.pid)]
            answer, _ = process.communicate("\n")
            if (answer, process.returncode) != ("alive\n", 0):
                problems.append(f"target: {answer!r}, status {process.returncode}")
        finally:
            process.kill()
    if not problems and sum(ends.values()) != bursts:
        problems.append(f"{bursts} bursts became {ends}")
    return ends, problems
