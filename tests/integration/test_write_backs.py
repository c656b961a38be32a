"""Write-backs of real programs: the estimate against exact write-back caches."""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tracees import compile_c, patiently, running, write_data
from waiting import PATIENCE_SECONDS

from memsampd.errors import CaptureError
from memsampd.sampler.records import Burst, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
from write_backs import exact_traffic, line_accesses

BURSTS, ROWS = 7, 250_000
LEAST_ROWS = 100_000  # of fewer there is little to say
HASHING = "d = {}\nwhile True:\n    for i in range(200000): d[i] = str(i)"


def long_bursts(pid: int) -> Iterator[Burst]:
    """Bursts at random moments, each of which has gone on for some time."""
    draw, give_up = random.Random(1), time.monotonic() + PATIENCE_SECONDS
    with closing(ReplicaSource(pid)) as source, suppress(CaptureError):  # it may come to its end
        while time.monotonic() < give_up:
            burst = patiently(
                lambda: source.capture(BurstRequest(pid, ROWS, 10)),
                ("not-running", "in-syscall", "in-rseq", "lost", "cold"),
            )
            if len(burst) >= LEAST_ROWS:
                yield burst
            time.sleep(draw.uniform(0, 0.2))


def errors_of(burst: Burst) -> list[float]:
    """Relative errors of the traffic at all sizes."""
    lines, stores = line_accesses([burst])
    found = list(exact_traffic(lines, stores, [1 << octave for octave in range(4, 16)]))
    assert all(exact.is_bounded for exact in found)
    return [abs(exact.error) for exact in found]


STREAMING = r"""
enum { WORDS = 1 << 20 };
static volatile long from[WORDS], to[WORDS];
__attribute__((noipa)) static void read_all(void) { for (long i = 0; i < WORDS; i++) from[i]; }
__attribute__((noipa)) static void copy(void) { for (long i = 0; i < WORDS; i++) to[i] = from[i]; }
__attribute__((noipa)) static void fill(void) { for (long i = 0; i < WORDS; i++) to[i] = i; }
int main(int argc, char **argv)
{
    (void)argc;
    for (;;)
        switch (argv[1][0]) {
        case 'r': read_all(); break;
        case 'c': copy(); break;
        default: fill();
        }
}
"""


def test_traffic_of_what_reads_copies_and_fills(tmp_path: Path) -> None:
    """None, half and all of the lines are written back: no constant is near to each of these."""
    program = compile_c(tmp_path, STREAMING)
    for way in ("read", "copy", "fill"):
        with running(program, way) as process:
            (burst,) = islice(long_bursts(process.pid), 1)
        assert max(errors_of(burst)) < 0.05


@pytest.mark.parametrize("name", ["xz", "bzip2", "python"])
def test_traffic_of_a_real_program(name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_data(data, 60 << 20)
    command = [sys.executable, "-c", HASHING] if name == "python" else [name, "-c", str(data)]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{name} is not installed (scripts/test-tools installs it)")
    bursts: list[Burst] = []
    while len(bursts) < BURSTS:  # it may end before
        with (tmp_path / "out").open("wb") as out, running(*command, stdout=out) as process:
            bursts += islice(long_bursts(process.pid), BURSTS - len(bursts))
    errors = [np.mean(errors_of(burst)) for burst in bursts]
    assert np.median(errors) < 0.35  # docs/traffic.md: 15 % over all programs; one may do anything
