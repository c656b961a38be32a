"""Makes the exact references of ``benchmarks/reference/data`` again, or checks one.

usage: python benchmarks/make_references.py NAME... | --all | --check [NAME] | --markdown FILE

Runs each program once under valgrind with our own tool, which writes the lines that it accesses
into a pipe, and simulates exact caches of all sizes on the other end: some minutes a program on two
cores. Needs a C compiler and Debian's ``valgrind`` package. ``--check`` makes one again, of which
the turn it is today if none is named, and compares it with what is kept: exit status 1 if they
differ by more than start-up explains.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from reference import store, tracer
from reference.comparison import TOLERANCE_PERCENT, compare, due
from reference.documents import replace_section
from reference.programs import BUILD, PROGRAMS, Program, cpu_features, environment, find
from reference.records import Block
from reference.windows import LRU_SIZES_BYTES, QUANTUM_ACCESSES, RunMisses, simulate

RANDOM_SEED = 1
# What valgrind 3.19 takes away from CPUID of what programs choose their routines by.
HIDDEN_FEATURES = r"avx512\w*|avx_vnni|fsrm|rtm|sha_ni|vaes|vpclmulqdq|gfni"


def package_version(package: str) -> str:
    """Return the installed version of a Debian package; empty where there is no dpkg."""
    if not package:
        return ""
    try:
        done = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", package],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def hidden_cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the features of this CPU that the program did not see under valgrind."""
    names = cpu_features(cpuinfo)
    return sorted({name for name in names if re.fullmatch(HIDDEN_FEATURES, name)})


def recipe(program: Program, command: list[str], seconds: float) -> dict[str, Any]:
    """Describe how a reference was made."""
    packages = {name: package_version(name) for name in (program.package, "gcc-12", "libc6")}
    return {
        "what": program.what,
        "command": shlex.join(command).replace(str(BUILD.parents[1]), "."),
        "inputs": "benchmarks/reference/inputs.py, programs/",
        "packages": {name: version for name, version in packages.items() if version},
        "tool": f"memtrace, {tracer.valgrind_version()}",
        "cpu": platform.processor() or platform.machine(),
        "cpu_features_hidden": hidden_cpu_features(),
        "random_seed": RANDOM_SEED,
        "seconds": round(seconds),
        "date": datetime.date.today().isoformat(),
    }


def measure(command: list[str], library: Path) -> RunMisses:
    """Run a program once and simulate the caches."""
    blocks: list[Block] = []
    pieces = tracer.stretches(
        command,
        library,
        blocks,
        quantum_accesses=QUANTUM_ACCESSES,
        env=environment(),
        cwd=BUILD,
    )
    return simulate(pieces, blocks, seed=RANDOM_SEED)


def make(program: Program, output: Path) -> str:
    """Make one reference; returns a line about it.

    Args:
        program: what to run.
        output: where to write the file.
    """
    library = tracer.build(BUILD)
    command = program.command(BUILD / "programs")
    start = time.monotonic()
    run = measure(command, library)
    seconds = time.monotonic() - start
    store.save(program.name, run, recipe(program, command, seconds), output)
    total = int(run.accesses.sum())
    return (
        f"{program.name:10} {total / 1e6:8.0f} M accesses, {run.distinct_lines / 16384:6.1f} MiB, "
        f"{len(run.accesses)} windows, {seconds:4.0f} s, {total / seconds / 1e6:.0f} M/s"
    )


def check(program: Program) -> bool:
    """Make a reference again and say how it differs from what is kept; False if it differs much."""
    kept = store.load(store.path_of(program.name))
    with tempfile.TemporaryDirectory(prefix="memsampd-reference-") as folder:
        path = Path(folder) / "again.npz"
        print(make(program, path))
        found = compare(kept, store.load(path))
    print(
        f"{program.name}: {'the same' if found.same else 'other'} counts; "
        f"accesses differ by {found.accesses:.1e}, whole run by {found.whole_run:.4f} %, "
        f"windows by {found.windows:.4f} % (tolerated: {TOLERANCE_PERCENT} %)"
    )
    return found.tolerable


def markdown() -> str:
    """Return a table of the references that are kept."""
    rows = [
        ("program", "what", "M accesses", "windows", "MiB touched", "misses at 32 KiB", "at 1 MiB"),
        ("---", "---", "---:", "---:", "---:", "---:", "---:"),
    ]
    for program in PROGRAMS:
        kept = store.load(store.path_of(program.name))
        ratios = kept.lru.sum(axis=0) / kept.total_accesses
        small, large = (ratios[LRU_SIZES_BYTES.index(size)] for size in (32 << 10, 1 << 20))
        figures = (
            f"{kept.total_accesses / 1e6:.0f}",
            str(len(kept.accesses)),
            f"{kept.distinct_lines / 16384:.1f}",
        )
        rows.append((program.name, program.what, *figures, f"{small:.2%}", f"{large:.2%}"))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the exact references again.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs to make")
    parser.add_argument("--all", action="store_true", help="make all of them")
    parser.add_argument(
        "--check", action="store_true", help="compare those named, or today's, with what is kept"
    )
    parser.add_argument("--folder", type=Path, default=store.DATA, help="where to write them")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="only put a table of what is kept there"
    )
    args = parser.parse_args()
    if args.markdown:
        replace_section(args.markdown, "references", markdown())
        return 0
    if bool(args.names) == args.all and not args.check:
        parser.error(f"name programs or --all; there are {', '.join(p.name for p in PROGRAMS)}")
    try:
        programs = find(args.names)
    except KeyError as error:
        parser.error(f"no program is called {error}")
    if args.check:
        chosen = programs if args.names else [due(PROGRAMS, datetime.date.today())]
        return 0 if all(list(map(check, chosen))) else 1
    for program in programs:
        print(make(program, args.folder / f"{program.name}.npz"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
