"""What a page costs a program whose process was copied, when it writes to it for the first time.

usage: python benchmarks/page_faults.py [--quick] [--json FILE]

A page that a living copy shares must be copied, one whose copies have ended is only made writable
again. Goal: the two constants that sessions charge are within a factor of two of what this machine
takes; exit status 1 if they are not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from memsampd.sampler.shadow.faults import COPY_SECONDS, UNSHARE_SECONDS

PAGES = 4096
FACTOR = 2.0
SOURCE = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static double touch(volatile char *memory, int pages)
{
    double start = now();
    for (int i = 0; i < pages; i++) memory[4096L * i]++;
    return (now() - start) / pages;
}
int main(int argc, char **argv)
{
    (void)argc;
    int pages = atoi(argv[1]), rounds = atoi(argv[2]);
    size_t size = 4096L * pages;
    char *memory =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, size, MADV_NOHUGEPAGE);
    touch(memory, pages);
    for (int round = 0; round < 2 * rounds; round++) {
        pid_t copy = fork();
        if (copy == 0) { pause(); _exit(0); }
        if (round % 2) { kill(copy, SIGKILL); waitpid(copy, NULL, 0); }
        double first = touch(memory, pages), again = touch(memory, pages);
        if (round % 2 == 0) { kill(copy, SIGKILL); waitpid(copy, NULL, 0); }
        printf("%d %.9f\n", round % 2, first - again);
    }
    return 0;
}
"""


def measure(rounds: int) -> tuple[float, float]:
    """Return the median seconds of a page that is shared, and of one that no longer is."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "faults"
        subprocess.run(
            ["cc", "-O1", "-x", "c", "-", "-o", str(program)], input=SOURCE, text=True, check=True
        )
        done = subprocess.run(
            [program, str(PAGES), str(rounds)], capture_output=True, text=True, check=True
        )
    seconds: tuple[list[float], list[float]] = ([], [])
    for line in done.stdout.splitlines():
        which, each = line.split()
        seconds[int(which)].append(float(each))
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def main(argv: list[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 rounds instead of 50")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    args = parser.parse_args(argv)
    found = dict(zip(("copy", "unshare"), measure(5 if args.quick else 50), strict=True))
    charged = {"copy": COPY_SECONDS, "unshare": UNSHARE_SECONDS}
    missed = False
    for name, seconds in found.items():
        missed |= not 1 / FACTOR <= charged[name] / seconds <= FACTOR
        print(f"{name:8} {1e6 * seconds:5.2f} us a page, charged {1e6 * charged[name]:.2f}")
    if args.json:
        args.json.write_text(json.dumps({"seconds": found, "charged_seconds": charged}) + "\n")
    if missed:
        print(f"missed: what is charged is wrong by more than a factor of {FACTOR:g}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
