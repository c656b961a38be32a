"""The branch source on real programs: what it samples, follows, drops and survives."""

import ctypes
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from memsampd.errors import CapabilityError
from memsampd.machines.cpulist import online_cpus
from memsampd.sampler.perf.probes import busy_child
from memsampd.sampler.perf.rings import PerCpuRings, PerThreadRings, SamplerOptions
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.maps import read_maps
from memsampd.sampler.protocols import BranchSource
from memsampd.sampler.records import BranchSamples

# Burns CPU time and no system calls: `burn(n)` is about n times 20 ms here.
PRELUDE = """
import hashlib, os, sys, threading, time
def burn(n):
    for _ in range(n):
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 30000)
def go():
    print("ready", flush=True)
    sys.stdin.readline()
"""


class Program:
    """A Python program that waits at each go() until it is told to."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self.wait_ready()

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.process.kill()
        program.process.communicate()


def read_all(source: TaskClockSource) -> BranchSamples:
    """Everything until the target has ended, as one record; checks the order on the way."""
    parts = []
    while not source.ended:
        parts.append(source.read(0.1))
    for part in parts:
        assert (np.diff(part.time_seconds) >= 0).all()
    return BranchSamples(
        ip=np.concatenate([part.ip for part in parts]),
        pid=np.concatenate([part.pid for part in parts]),
        tid=np.concatenate([part.tid for part in parts]),
        time_seconds=np.concatenate([part.time_seconds for part in parts]),
        period_seconds=source.period_seconds,
        lost=sum(part.lost for part in parts),
        throttled=sum(part.throttled for part in parts),
    )


def cpu_seconds_of(pid: int, start_ns: int) -> float:
    """CPU time of a process that has just exited, from its zombie."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return (process_cpu_ns(pid) - start_ns) * 1e-9


def covered_share(samples: int, period_seconds: float, cpu_seconds: float) -> float:
    """CPU time that samples stand for, by CPU time: about 1.

    Less where the host of a VM keeps a CPU to itself: one late interrupt then stands for several
    periods. Twice the threads, or half of them, would be 2 or a half.
    """
    return samples * period_seconds / cpu_seconds


@pytest.mark.parametrize("period_seconds", [1e-3, 0.25e-3])
def test_a_sample_stands_for_a_period_of_cpu_time(
    programs: list[Program], period_seconds: float
) -> None:
    program = Program("go(); burn(20)")
    programs.append(program)
    start_ns = process_cpu_ns(program.pid)
    with TaskClockSource(program.pid, period_seconds=period_seconds) as source:
        assert isinstance(source, BranchSource)
        program.go()
        samples = read_all(source)
        cpu_seconds = cpu_seconds_of(program.pid, start_ns)
    assert samples.lost == samples.throttled == 0
    assert 0.65 < covered_share(len(samples), period_seconds, cpu_seconds) < 1.15
    assert set(samples.pid.tolist()) == set(samples.tid.tolist()) == {program.pid}


def test_samples_lie_in_code_that_the_program_runs() -> None:
    with busy_child() as child, TaskClockSource(child.pid) as source:
        space = read_maps(child.pid)
        child.run(0.05)
        samples = source.read(0.0)
    assert len(samples) > 20
    paths = [mapping.path if mapping else "" for ip in samples.ip if (mapping := space.find(ip),)]
    assert sum("_core" in path for path in paths) > 0.9 * len(paths)


def test_threads_before_and_after_attach_are_sampled_once(programs: list[Program]) -> None:
    program = Program("""
        early = [threading.Thread(target=lambda: (gate.wait(), burn(5))) for _ in range(3)]
        gate = threading.Event()
        [t.start() for t in early]
        go()
        gate.set()
        for _ in range(5):
            late = [threading.Thread(target=burn, args=(2,)) for _ in range(2)]
            [t.start() for t in late]; [t.join() for t in late]
    """)
    programs.append(program)
    start_ns = process_cpu_ns(program.pid)
    with TaskClockSource(program.pid, period_seconds=1e-3) as source:
        program.go()
        samples = read_all(source)
        events = source.take_events()
        cpu_seconds = cpu_seconds_of(program.pid, start_ns)
    assert 0.65 < covered_share(len(samples), samples.period_seconds, cpu_seconds) < 1.15
    assert len(set(samples.tid.tolist())) >= 13
    births = {event.tid for event in events if event.kind == "fork"}
    deaths = {event.tid for event in events if event.kind == "exit"}
    assert len(births) == 10
    assert births | {program.pid} <= deaths
    assert source.take_events() == ()


def test_attach_amid_a_storm_of_new_threads(programs: list[Program]) -> None:
    # Threads far longer than a period: one that ends within its first gives no sample at all.
    program = Program("""
        def storm():
            for _ in range(40):
                t = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"a", b"b", 20000))
                t.start(); t.join()
        stormers = [threading.Thread(target=storm) for _ in range(3)]
        [t.start() for t in stormers]
        go()
        [t.join() for t in stormers]
    """)
    programs.append(program)
    program.go()
    with TaskClockSource(program.pid) as source:
        start_ns = process_cpu_ns(program.pid)
        samples = read_all(source)
        cpu_seconds = cpu_seconds_of(program.pid, start_ns)
    # A thread counted twice would give more samples than there is CPU time.
    assert 0.8 * cpu_seconds < len(samples) * samples.period_seconds < 1.05 * cpu_seconds


FORKING = """
    go()
    child = os.fork()
    burn(8)
    if child: os.waitpid(child, 0)
"""


def test_child_processes_are_left_alone(programs: list[Program]) -> None:
    program = Program(FORKING)
    programs.append(program)
    with TaskClockSource(program.pid) as source:
        program.go()
        samples = read_all(source)
    assert set(samples.pid.tolist()) == {program.pid}
    assert source.notes == ()


@pytest.mark.parametrize("follow_forks", [False, True])
def test_the_kernel_itself_follows_or_not(programs: list[Program], follow_forks: bool) -> None:
    program = Program(FORKING)
    programs.append(program)
    options = SamplerOptions(program.pid, 1_000_000, 1600, 1 << 17, follow_forks, Path("/proc"))
    rings = PerCpuRings(options, online_cpus())
    program.go()
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    pids = set(rings.drain().samples["pid"].tolist())
    rings.close()
    assert len(pids) == (2 if follow_forks else 1)


def test_child_processes_are_followed_if_asked(programs: list[Program]) -> None:
    program = Program(FORKING)
    programs.append(program)
    with TaskClockSource(program.pid, follow_forks=True) as source:
        program.go()
        samples = read_all(source)
        events = source.take_events()
    born = [event for event in events if event.kind == "fork" and event.pid != program.pid]
    assert [event.parent_pid for event in born] == [program.pid]
    counts = {pid: (samples.pid == pid).sum() for pid in (program.pid, born[0].pid)}
    assert counts[born[0].pid] == pytest.approx(counts[program.pid], rel=0.45)


def test_exec_is_told_and_survived(programs: list[Program]) -> None:
    program = Program("go(); os.execv(sys.executable, [sys.executable, '-c', 'sum(range(9**7))'])")
    programs.append(program)
    with TaskClockSource(program.pid) as source:
        program.go()
        samples = read_all(source)
        execs = [event for event in source.take_events() if event.kind == "exec"]
    assert [event.tid for event in execs] == [program.pid]
    assert execs[0].command == os.path.basename(sys.executable)[:15]
    assert (samples.time_seconds > execs[0].time_seconds).sum() > 20


def test_the_end_is_told_and_reading_goes_on_empty(programs: list[Program]) -> None:
    program = Program("go(); burn(5)")
    programs.append(program)
    source = TaskClockSource(program.pid)
    program.go()
    assert len(read_all(source)) > 20
    assert source.ended
    assert len(source.read(10.0)) == 0
    source.close()
    source.close()
    assert len(source.read(10.0)) == 0


def test_nothing_is_left_open(programs: list[Program]) -> None:
    program = Program("go()")
    programs.append(program)
    before = os.listdir("/proc/self/fd")
    TaskClockSource(program.pid).close()
    assert os.listdir("/proc/self/fd") == before
    assert not any("perf_event" in m.path for m in read_maps(os.getpid()).mappings)


def test_a_full_ring_is_counted_as_lost(programs: list[Program]) -> None:
    program = Program("go(); burn(15); go(); burn(15)")
    programs.append(program)
    start_ns = process_cpu_ns(program.pid)
    with TaskClockSource(program.pid, period_seconds=1e-4, ring_bytes=4096) as source:
        program.go()
        program.wait_ready()
        first = source.read(0.0)  # frees the ring: the next record brings the count of lost ones
        program.go()
        rest = read_all(source)
        cpu_seconds = cpu_seconds_of(program.pid, start_ns)
    assert rest.lost > 500
    counted = first.lost + rest.lost + len(first) + len(rest)
    assert 0.65 < covered_share(counted, 1e-4, cpu_seconds) < 1.2


def test_without_descriptors_enough_threads_are_looked_for(programs: list[Program]) -> None:
    program = Program("""
        go()
        late = [threading.Thread(target=burn, args=(10,)) for _ in range(2)]
        [t.start() for t in late]; [t.join() for t in late]
        burn(5)
    """)
    programs.append(program)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    start_ns = process_cpu_ns(program.pid)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))
        # As on a machine with 64K CPUs: no limit can be raised so far.
        source = TaskClockSource(program.pid, cpus=range(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with source:
        assert "ulimit -Hn" in source.notes[0]
        program.go()
        samples = read_all(source)
        cpu_seconds = cpu_seconds_of(program.pid, start_ns)
    assert len(set(samples.tid.tolist())) == 3
    assert len(samples) * samples.period_seconds == pytest.approx(cpu_seconds, rel=0.4)


def test_the_soft_limit_is_raised(programs: list[Program]) -> None:
    program = Program("go(); burn(5)")
    programs.append(program)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, hard))
        with TaskClockSource(program.pid) as source:
            assert source.notes == ()
            program.go()
            assert len(read_all(source)) > 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_both_layouts_see_the_same_program(programs: list[Program]) -> None:
    program = Program("go(); burn(20)")
    programs.append(program)
    options = SamplerOptions(program.pid, 1_000_000, 1600, 1 << 17, False, Path("/proc"))
    per_cpu, per_thread = PerCpuRings(options, online_cpus()), PerThreadRings(options, "")
    program.go()
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    first, second = per_cpu.drain(), per_thread.drain()
    per_cpu.close()
    per_thread.close()
    assert len(first.samples) == pytest.approx(len(second.samples), rel=0.2)
    assert first.lost == second.lost == 0


def test_memory_that_allows_no_ring() -> None:
    before = os.listdir("/proc/self/fd")
    with busy_child() as child, pytest.raises(CapabilityError, match="ring buffer") as caught:
        TaskClockSource(child.pid, ring_bytes=1 << 60)
    assert "perf_event_mlock_kb" in caught.value.remedy
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_ordinary_user_gets_smaller_rings() -> None:
    """The locked memory of ordinary users is limited to about half a MiB a CPU."""
    libc = ctypes.CDLL(None)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "nothing"
        try:
            os.setgid(65534)
            os.setuid(65534)
            libc.prctl(4, 1)  # PR_SET_DUMPABLE, which setuid cleared: as in an ordinary process
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
            with busy_child() as busy:
                source = TaskClockSource(busy.pid, ring_bytes=1 << 22)
                busy.run(0.05)
                answer = f"{len(source.read(0.0)) > 20}"
                TaskClockSource(busy.pid)  # there is nothing left of the limit
        except CapabilityError as error:
            answer += f" {error}"
        except BaseException as error:
            answer = repr(error)
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer.startswith("True a ring buffer for samples cannot be mapped")
    assert "perf_event_mlock_kb" in answer
