"""What a stepped burst costs: steps a second, how long the target stops, equality of twins.

usage: python benchmarks/shadow_steps.py [--quick] [--json FILE]

Goal: every pair of twins equal, access for access. Speeds are printed, not judged.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from memsampd.demo.program import compile_demo
from memsampd.errors import CaptureError
from memsampd.sampler.records import Burst, BurstRequest
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor

_INPUT = Path(sys.executable).resolve()
_FIELDS = ("ip", "address", "size_bytes", "is_write")


def programs() -> dict[str, Sequence[str]]:
    """Command lines by name; those that are not installed are left out."""
    loop = f"while cat {_INPUT}; do :; done"
    wanted = {
        "gzip": ("sh", "-c", f"exec gzip -9 < <({loop}) > /dev/null"),
        "xz": ("sh", "-c", f"exec xz -6 < <({loop}) > /dev/null"),
        "python3": (sys.executable, "-c", "while True: d = {i: str(i) for i in range(5000)}"),
        "kernels": (str(compile_demo()), "--rounds", "100"),
    }
    bash = shutil.which("bash") or "sh"
    return {
        name: (bash, *command[1:]) if command[0] == "sh" else command
        for name, command in wanted.items()
        if shutil.which(name) or name in ("python3", "kernels")
    }


def equal(one: Burst, other: Burst) -> bool:
    """Whether two bursts saw the same."""
    return all(np.array_equal(getattr(one, f), getattr(other, f)) for f in _FIELDS)


def measure(command: Sequence[str], rounds: int, accesses: int) -> dict[str, float]:
    """Take twins of one program and time them."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    speeds, stops, equals, lengths = [], [], [], []
    try:
        time.sleep(0.5)
        source = ShadowSource(process.pid, SteppingExecutor())
        for _ in range(rounds):
            started = time.monotonic()
            try:
                one, other = source.capture_twins(BurstRequest(process.pid, accesses, 30.0), 2)
            except CaptureError:
                continue
            seconds = time.monotonic() - started
            equals.append(equal(one, other))
            lengths.append(len(one))
            if len(one) > 1000:
                speeds.append((one.instructions + other.instructions) / seconds)
            stops.append(one.cost.stop_seconds / one.cost.stops)
            time.sleep(0.05)
        source.close()
    finally:
        process.kill()
        process.wait()
    return {
        "twins": len(equals),
        "equal": sum(equals),
        "median_accesses": statistics.median(lengths) if lengths else 0,
        "steps_per_second": statistics.median(speeds) if speeds else 0,
        "stop_milliseconds": 1e3 * statistics.median(stops) if stops else 0,
    }


def main() -> int:
    """Measure all programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter bursts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    rounds, accesses = (2, 3000) if args.quick else (7, 20_000)
    results = {name: measure(c, rounds, accesses) for name, c in programs().items()}
    print(f"{'program':10} {'twins':>6} {'equal':>6} {'accesses':>9} {'steps/s':>9} {'stop ms':>8}")
    for name, r in results.items():
        print(
            f"{name:10} {r['twins']:6.0f} {r['equal']:6.0f} {r['median_accesses']:9.0f} "
            f"{r['steps_per_second']:9.0f} {r['stop_milliseconds']:8.2f}"
        )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(r["equal"] < r["twins"] or not r["twins"] for r in results.values()))


if __name__ == "__main__":
    sys.exit(main())
