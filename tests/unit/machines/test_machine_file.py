"""The machine file and the figures in it."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from memsampd.errors import CapabilityError
from memsampd.machines.bandwidth import (
    Bandwidth,
    OthersCpu,
    _round,
    allowed_cpus,
    check_cpus,
    check_idle,
    measure_bandwidth,
)
from memsampd.machines.machine import Machine, read_machine
from memsampd.machines.machine_file import (
    MachineFile,
    find_file,
    known_peak,
    own_path,
    read_file,
    write_file,
)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return read_machine()


def content(machine: Machine) -> MachineFile:
    rates = {("read", 1): 20e9, ("write", 1): 10e9, ("read", 4): 50e9, ("write", 4): 25e9}
    return MachineFile(
        measured_unix_seconds=1.7e9,
        cpu=machine.cpu.name,
        cpus=len(machine.cpus),
        bandwidths=tuple(Bandwidth(*key, rate) for key, rate in rates.items()),  # type: ignore[arg-type]
        others_cpu_share=0.02,
        area_bytes=1 << 28,
    )


def test_what_is_written_is_read(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "deep/er/machine.json"
    write_file(path, content(machine))
    assert read_file(path) == content(machine)
    assert [each.name for each in path.parent.iterdir()] == ["machine.json"]


def test_the_peak(machine: Machine) -> None:
    peak = content(machine).peak
    assert peak.all_threads is not None
    assert (peak.one_thread.read, peak.all_threads.write) == (20e9, 25e9)
    # A fifth of the time for lines that are only fetched, a fifth for those written back.
    assert peak.one_thread.share(fetched=6e9, written_back=2e9) == pytest.approx(0.4)
    assert peak.one_thread.share(fetched=20e9, written_back=0) == 1
    assert peak.one_thread.share(fetched=10e9, written_back=10e9) == 1


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda text: text[:40], "is no machine file"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "is of version 2, not 1"),
        (lambda text: text.replace('"read"', '"copy"'), "lacks figures"),
        (lambda text: text.replace("20000000000", "-20000000000"), "lacks figures"),
    ],
)
def test_damage(damage: object, complaint: str, machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    write_file(path, content(machine))
    assert callable(damage)
    path.write_text(damage(path.read_text()))
    with pytest.raises(CapabilityError, match=f"{complaint}.*memsampd machine --measure"):
        read_file(path)


def test_unknown_keys_are_ignored(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    write_file(path, content(machine))
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert read_file(path) == content(machine)


def test_a_file_of_another_machine_says_nothing(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = own_path()
    assert path == tmp_path / "memsampd/machine.json"
    assert find_file([path]) is None
    write_file(path, content(machine))
    assert known_peak(machine) == content(machine).peak
    other = replace(machine, cpu=replace(machine.cpu, name="another"))
    with pytest.raises(CapabilityError, match="measured on another machine"):
        known_peak(other)


@pytest.mark.parametrize(
    ("doubtful", "doubts"),
    [
        ({"allowed_cpus": 1.0}, "only 1 of"),
        ({"others_cpu_share": 0.4}, "others used 40% of the CPU time"),
        ({}, ""),
    ],
)
def test_a_peak_that_may_be_too_low_is_said_to_be(
    doubtful: dict[str, float],
    doubts: str,
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_file(own_path(), replace(content(machine), **doubtful))
    peak = known_peak(machine)
    assert peak is not None
    assert peak.one_thread == content(machine).peak.one_thread
    assert (peak.all_threads is None) == ("allowed_cpus" in doubtful)
    assert ("may be too low" in caplog.text) == bool(doubts)
    assert doubts in caplog.text


def test_a_directory_that_cannot_be_written(machine: Machine) -> None:
    with pytest.raises(CapabilityError, match="--output FILE"):
        write_file(Path("/proc/nowhere/machine.json"), content(machine))


def proc_tree(root: Path, *, busy: int, idle: int, free_mib: int = 1 << 20) -> Path:
    root.mkdir(exist_ok=True)
    (root / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 0\n")
    (root / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {free_mib << 10} kB\n")
    return root


def test_others_are_those_that_are_not_us(tmp_path: Path) -> None:
    proc = proc_tree(tmp_path, busy=100, idle=1000)
    others = OthersCpu(proc)
    proc_tree(tmp_path, busy=100 + 75_000, idle=1000 + 25_000)
    assert others.share() == pytest.approx(0.75, abs=0.02)  # less what this test itself used
    assert check_idle(proc) == 0


def test_too_little_memory(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="300 MiB are available"):
        measure_bandwidth(0, 1.0, proc=proc_tree(tmp_path, busy=0, idle=0, free_mib=300))


def test_too_little_memory_left_to_the_control_group(tmp_path: Path) -> None:
    proc = proc_tree(tmp_path, busy=0, idle=0)
    with pytest.raises(CapabilityError, match=r"it has 400 MiB.*memory limit"):
        measure_bandwidth(0, 1.0, proc=proc, group_room_bytes=400 << 20)


def test_cpus_that_may_not_be_used_at_once() -> None:
    affine = len(os.sched_getaffinity(0))
    assert allowed_cpus(None) == allowed_cpus(affine + 1.0) == affine
    assert allowed_cpus(0.5) == 0.5
    check_cpus(4, 4)
    with pytest.raises(CapabilityError, match=r"0.5 of 4 CPUs.*quota"):
        check_cpus(0.5, 4)


def test_a_thread_that_cannot_be_on_its_cpu_ends_the_others() -> None:
    cpu, none = min(os.sched_getaffinity(0)), 1 << 14  # Linux has fewer
    areas = [mmap.mmap(-1, 1 << 20) for _ in range(2)]
    with pytest.raises(CapabilityError, match=r"a thread on each CPU.*Invalid argument"):
        _round("read", areas, [cpu, none], 0.01)
