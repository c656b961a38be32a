"""The record parser against perf's own: files that perf records here, and others that are given.

``MEMSAMPD_PERF_DATA`` may name further perf.data files, separated by colons: such as hold samples
of PEBS or IBS, which this machine may not have.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import perf_records as abi
import pytest

from memsampd import _core
from memsampd.sampler.perf.rings import SAMPLE_DTYPE

pytestmark = pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")

GIVEN = [Path(name) for name in os.environ.get("MEMSAMPD_PERF_DATA", "").split(":") if name]
RECORDED = {
    "faults": ("-e", "page-faults:u", "-c", "1", "--data", "--weight"),
    "clock": ("-e", "task-clock:u", "-c", "500000", "--data", "--sample-cpu", "--period"),
}
PROGRAM = "b = bytearray(1 << 22); sum(i * i for i in range(300000))"


def recorded(kind: str, folder: Path) -> Path:
    path = folder / "perf.data"
    command = ["perf", "record", "--quiet", *RECORDED[kind], "-o", str(path)]
    subprocess.run([*command, "--", sys.executable, "-c", PROGRAM], check=True)
    return path


def told_by_perf(path: Path) -> list[tuple[int, int, int, int]]:
    """Thread, time, instruction and address (0 without) of each user sample, in order of time.

    Which are of user mode is what the records say: PEBS may put an instruction of the kernel's into
    one of these.
    """
    has_address = abi.DataFile.read(path).sample_type & abi.ADDR
    fields = "tid,misc,time,addr,ip" if has_address else "tid,misc,time,ip"
    command = ["perf", "script", "-i", str(path), "--ns", "-F", fields]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    samples = []
    for line in done.stdout.splitlines():
        tid, mode, time, *others = line.split()
        address, ip = others[:2] if has_address else ("0", others[0])
        seconds, nanoseconds = time.rstrip(":").split(".")
        if mode.startswith("U"):
            time_ns = int(seconds) * 10**9 + int(nanoseconds)
            samples.append((int(tid.split("/")[-1]), time_ns, int(ip, 16), int(address, 16)))
    return sorted(samples)


def told_by_us(path: Path) -> list[tuple[int, int, int, int]]:
    file = abi.DataFile.read(path)
    raw, _, lost, _ = _core.parse_records(file.samples(), file.sample_type)
    assert lost == 0
    columns = np.frombuffer(raw, SAMPLE_DTYPE)[["tid", "time_ns", "ip", "address"]]
    return sorted(map(tuple, columns.tolist()))


@pytest.mark.parametrize("kind", RECORDED)
def test_what_perf_records_here(kind: str, tmp_path: Path) -> None:
    path = recorded(kind, tmp_path)
    samples = told_by_us(path)
    assert samples
    assert samples == told_by_perf(path)


@pytest.mark.parametrize("path", GIVEN, ids=str)
def test_what_was_recorded_elsewhere(path: Path) -> None:
    samples = told_by_us(path)
    assert samples
    assert samples == told_by_perf(path)
