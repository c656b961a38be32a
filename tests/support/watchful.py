"""Programs that say so if they notice that they are observed."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from tracees import compile_c, observed

SOURCES = Path(__file__).with_name("watchful_programs")

# Takes so many bursts; after the first one it says so, and waits for a line.
OBSERVER = """
import sys, time
from memsampd.errors import MemsampdError
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
pid, wanted, bursts = int(sys.argv[1]), int(sys.argv[2]), 0
source = ReplicaSource(pid)
while bursts < wanted:
    try:
        source.capture(BurstRequest(pid, 20000))
        bursts += 1
        if bursts == 1:
            print("begun", flush=True)
            sys.stdin.readline()
    except MemsampdError as error:
        if error.reason == "gone":
            sys.exit("gone")
        time.sleep(0.001)
source.close()
"""


def compile_watchful(directory: Path, name: str) -> Path:
    """Compile one of these programs; its path."""
    return compile_c(directory, (SOURCES / f"{name}.c").read_text(), f"-I{SOURCES}")


def tell(process: subprocess.Popen[str]) -> None:
    """It is to end."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has said what it had to
        process.stdin.write("\n")
        process.stdin.flush()


def outcome(
    process: subprocess.Popen[str], attaches: int = 0, bursts: int = 0, **options: object
) -> str:
    """What a program says that was observed so often, at least; skips where it says "skip".

    While it is observed it is not waited for: its stops are for its tracer.
    """
    assert process.stdout is not None
    if (first := process.stdout.readline()).startswith("skip"):
        pytest.skip(first.strip())
    assert first == "ready\n"
    with observed(process.pid, **options) as tally:

        def is_enough() -> bool:
            return tally.attaches >= attaches and tally.bursts >= bursts

        # Who has noticed something ends, and says what that is.
        tally.wait(lambda: tally.is_over or is_enough())
        was_enough = is_enough()
        tell(process)
        answer = process.stdout.read().strip()
    answer += f", ended by {code}" if (code := process.wait()) else ""
    return answer if was_enough else f"{answer}, observed too little: {tally}"
