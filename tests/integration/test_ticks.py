"""Branch samples by the kernel's ticks, where tracepoints may be used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tracees import descriptors, running, sleeping, tries
from waiting import PATIENCE_SECONDS

from memsampd import _core
from memsampd.daemon.config import SessionConfig
from memsampd.daemon.store.keys import program_key
from memsampd.errors import CapabilityError
from memsampd.sampler.perf.probes import busy_child
from memsampd.sampler.perf.rings import Drained
from memsampd.sampler.perf.ticks import (
    Ticks,
    TickSource,
    tick_function,
    tickless_cpus_of,
    tracepoint_id,
    try_ticks,
)
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.maps import read_maps
from memsampd.sampler.records import BranchSamples

PURE = "print('ready', flush=True)\nwhile True: pass"
IN_THE_KERNEL = """
with open('/dev/zero', 'rb', buffering=0) as file:
    room = bytearray(1 << 20)
    print('ready', flush=True)
    while True: file.readinto(room)
"""
AS_REGULAR = """
import signal, sys
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]), float(sys.argv[1]))
print('ready', flush=True)
while True: signal.pause()
"""
CPU_SECONDS = 0.5


@contextmanager
def python(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with running(sys.executable, "-c", code, *arguments) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def sampled(source: TickSource, pid: int) -> tuple[list[BranchSamples], float]:
    """What comes in half a second of a program's CPU time, and that."""
    start_ns, found = process_cpu_ns(pid), list[BranchSamples]()
    give_up = time.monotonic() + PATIENCE_SECONDS
    while (cpu_seconds := (process_cpu_ns(pid) - start_ns) * 1e-9) < CPU_SECONDS:
        assert time.monotonic() < give_up
        found.append(source.read(0.05))
    return found, cpu_seconds


def share(ticks: Ticks, code: str, period_seconds: float = 0.004) -> float:
    """CPU time that samples of a program stand for, by its CPU time."""
    with (
        python(code) as process,
        TickSource(process.pid, ticks, period_seconds=period_seconds) as source,
    ):
        found, cpu_seconds = sampled(source, process.pid)
        assert source.notes == ()
    assert all(each.lost == 0 for each in found)
    return sum(len(each) * each.period_seconds for each in found) / cpu_seconds


def check_pure(ticks: Ticks, period_seconds: float) -> None:
    """Not in each run: what a busy host takes from a CPU has ticks, too."""
    shares = []
    for _ in range(20):
        shares.append(share(ticks, PURE, period_seconds))
        if 0.8 < shares[-1] < 1.2:
            return
    pytest.fail(f"samples never stood for the CPU time: {shares}")


def test_they_stand_for_user_time(ticks: Ticks) -> None:
    check_pure(ticks, 0.004)
    assert share(ticks, IN_THE_KERNEL) < 0.5


def test_they_lie_in_code_that_the_program_runs_and_have_its_registers(ticks: Ticks) -> None:
    with busy_child() as child, TickSource(child.pid, ticks, period_seconds=0.004) as source:
        space = read_maps(child.pid)
        found, _ = sampled(source, child.pid)
    ips = np.concatenate([each.ip for each in found])
    paths = [mapping.path if mapping else "" for ip in ips if (mapping := space.find(int(ip)),)]
    assert sum("_core" in path for path in paths) > 0.9 * len(paths) > 0
    stack_pointers = np.concatenate([each.registers for each in found])[:, 7]
    stacks = [space.find(int(pointer)) for pointer in np.unique(stack_pointers)]
    assert all(stack is not None and "w" in stack.perms for stack in stacks)


def test_the_latest_samples_are_as_many_as_asked_for_though_others_were_in_the_kernel(
    ticks: Ticks,
) -> None:
    half = IN_THE_KERNEL.replace("while True: file", "while True:\n        sum(range(4000)); file")
    looks = Counter[int]()
    with python(half) as process, TickSource(process.pid, ticks, period_seconds=0.004) as source:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while looks[5] < 5:
            assert time.monotonic() < give_up
            looks[len(source.latest(5))] += 1
            source.read(0.0)
            time.sleep(0.05 * (2 + looks[0]))  # fewer come where all CPUs are busy
    assert set(looks) <= {0, 5}


def first_note(ticks: Ticks, period_seconds: float) -> str:
    with (
        python(PURE) as process,
        TickSource(process.pid, ticks, period_seconds=period_seconds) as source,
    ):
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not source.notes:
            assert time.monotonic() < give_up
            source.read(0.1)
        return source.notes[0]


def test_who_runs_in_step_with_them_is_told(ticks: Ticks) -> None:
    """Taken for twice as far apart as they are, ticks stand for twice the CPU time."""
    wrong = replace(ticks, seconds=2 * ticks.seconds)
    note = first_note(wrong, period_seconds=0.008)
    assert "in step with the kernel's ticks" in note
    assert "--branches timer" in note


def test_cpus_that_ticks_do_not_come_to(ticks: Ticks) -> None:
    """Ticks every microsecond there were hardly any of."""
    wrong = replace(ticks, seconds=1e-6)
    note = first_note(wrong, period_seconds=1e-6)
    assert "hardly any ticks" in note
    assert "--branches timer" in note


@pytest.mark.parametrize("said", ["(null)\n", "\n", "", None])
def test_usually_every_cpu_has_ticks(tmp_path: Path, said: str | None) -> None:
    if said is not None:
        tell_tickless(tmp_path, said)
    assert tickless_cpus_of(os.getpid(), tmp_path) == ()


def test_cpus_without_ticks_that_a_thread_may_run_on(tmp_path: Path) -> None:
    most = max(os.sched_getaffinity(0))
    with sleeping() as process:
        tell_tickless(tmp_path, f"{most}-{most + 2},{most + 7}\n")
        assert tickless_cpus_of(process.pid, tmp_path) == (most,)
        tell_tickless(tmp_path, f"{most + 1}\n")
        assert tickless_cpus_of(process.pid, tmp_path) == ()
    tell_tickless(tmp_path, f"{most}\n")
    assert tickless_cpus_of(process.pid, tmp_path) == ()  # it has ended


def tell_tickless(sys_root: Path, said: str) -> None:
    folder = sys_root / "devices/system/cpu"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nohz_full").write_text(said)


def test_what_came_last_of_a_process_that_has_just_ended_is_told(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when its samples have been taken, before its CPU time is asked for."""
    with python(PURE) as process, TickSource(process.pid, ticks, period_seconds=0.004) as source:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not len(source.latest(1)):
            assert time.monotonic() < give_up
        take = source._found

        def take_and_end(timeout_seconds: float) -> Drained:
            found = take(timeout_seconds)
            process.kill()
            process.wait()
            return found

        monkeypatch.setattr(source, "_found", take_and_end)
        assert len(source.read(0.0)) > 0


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """This thread and what it starts run there only."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cpus)})
    yield
    os.sched_setaffinity(0, cpus)


@pytest.mark.usefixtures("one_cpu")
def test_a_timer_as_regular_of_another_program_is_not_taken_for_it(ticks: Ticks) -> None:
    if not tick_function():
        pytest.skip("the kernel tells no addresses: kernel.kptr_restrict")
    with python(AS_REGULAR, str(ticks.seconds)):
        for _ in range(10):
            with closing(try_ticks()) as again:
                # Where all CPUs are busy a trial may find none.
                assert again.event is None or replace(again, descriptor=ticks.descriptor) == ticks


@pytest.mark.parametrize(
    "told",
    [
        "10 t tick_nohz_handler\n20 t tick_sched_timer\n",  # until Linux 6.6
        "10 t other\n20 t tick_nohz_highres_handler\n",  # of 6.7 and 6.8
        "20 t tick_nohz_handler\n30 T tick_sched_timer_dying\n40 t read\t[module]\n",
        "20 t tick_nohz_handler\nfffff t other\n",
    ],
)
def test_their_function_has_other_names_in_other_kernels(told: str, tmp_path: Path) -> None:
    (tmp_path / "kallsyms").write_text(told)
    assert tick_function(tmp_path / "kallsyms") == 0x20


def test_they_are_found_by_their_times_where_the_kernel_tells_no_addresses(
    ticks: Ticks, tmp_path: Path
) -> None:
    hidden = tmp_path / "kallsyms"
    hidden.write_text("0000000000000000 t tick_nohz_handler\n")
    assert tick_function(hidden) == tick_function(tmp_path / "none") == 0
    for _ in tries():  # another program's timer may be as regular
        with closing(try_ticks(symbols=hidden)) as again:
            if replace(again, descriptor=ticks.descriptor) == ticks:
                break


def test_samples_are_some_ticks_apart(ticks: Ticks) -> None:
    assert ticks.every(ticks.seconds) == ticks.every(ticks.seconds / 10) == 1
    assert ticks.every(3.2 * ticks.seconds) == 3
    asked_seconds = 3.2 * ticks.seconds
    with (
        python(PURE) as process,
        TickSource(process.pid, ticks, period_seconds=asked_seconds) as source,
    ):
        assert source.period_seconds == pytest.approx(3 * ticks.seconds)
    check_pure(ticks, asked_seconds)  # each tick would be three times as much


def test_nothing_is_left_open(ticks: Ticks) -> None:
    before = descriptors()
    again = try_ticks()
    if again.event is not None:  # where all CPUs are busy a trial may find none
        assert replace(again, descriptor=ticks.descriptor) == ticks
    again.close()
    with python(PURE) as process:
        with TickSource(process.pid, ticks, period_seconds=0.004) as source:
            sampled(source, process.pid)
        source.close()
    assert descriptors() == before


def test_without_tracefs_there_are_none(tmp_path: Path) -> None:
    before = descriptors()
    assert "No such file" in try_ticks(tmp_path).why_not
    with pytest.raises(CapabilityError, match="mount -t tracefs"):
        tracepoint_id(tmp_path)
    folder = tmp_path / "events/timer/hrtimer_expire_entry"
    folder.mkdir(parents=True)
    (folder / "id").write_text("7\n")
    (folder / "format").write_text("\tfield:void * function;\toffset:16;\tsize:8;\tsigned:0;\n")
    with pytest.raises(CapabilityError, match="another form"):
        tracepoint_id(tmp_path)
    (folder / "format").write_text("\tfield:void * function;\toffset:24;\tsize:8;\tsigned:0;\n")
    assert tracepoint_id(tmp_path) == 7
    assert descriptors() == before


def test_a_tracepoint_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "events/timer/hrtimer_expire_entry"
    folder.mkdir(parents=True)
    (folder / "id").write_text(f"{2**31 - 1}\n")
    (folder / "format").write_text("\tfield:void * function;\toffset:24;\tsize:8;\tsigned:0;\n")
    found = try_ticks(tmp_path)
    assert found.event is None
    assert "tracepoint of timers" in found.why_not


def test_what_was_learned_by_a_timer_is_known_again() -> None:
    with python(PURE) as process:
        keys = [
            program_key(process.pid, SessionConfig(), branches, PATIENCE_SECONDS)
            for branches in ("timer", "ticks", "pmu")
        ]
    timer, by_ticks, pmu = (None if key is None else key.digest for key in keys)
    assert timer == by_ticks != pmu
    assert timer is not None


def test_the_core_refuses_no_filter_in_silence(ticks: Ticks) -> None:
    assert ticks.event is not None
    odd = replace(ticks, event=replace(ticks.event, filter="nonsense=="))
    with busy_child() as child:
        before = descriptors()
        with pytest.raises(CapabilityError):
            TickSource(child.pid, odd, period_seconds=0.004)
        assert descriptors() == before
    assert ticks.event.type == _core.PERF_TYPE_TRACEPOINT
