"""The branch source on real programs: what it samples, follows, drops and survives."""

import ctypes
import mmap
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tracees import descriptors
from waiting import PATIENCE_SECONDS

from memsampd import _core
from memsampd.errors import CapabilityError
from memsampd.machines.cpulist import online_cpus
from memsampd.sampler.perf.arrival import Arrival
from memsampd.sampler.perf.cpu_rings import PerCpuRings
from memsampd.sampler.perf.groups import SamplerOptions
from memsampd.sampler.perf.probes import busy_child
from memsampd.sampler.perf.refusal import read_paranoid
from memsampd.sampler.perf.rings import NoRoomForRingError, Rings, TaskEvent, map_ring
from memsampd.sampler.perf.sleepers import wait_until_one_runs
from memsampd.sampler.perf.source import RECORD_BYTES, TaskClockSource
from memsampd.sampler.perf.stream import SampleStream
from memsampd.sampler.perf.thread_rings import PerThreadRings
from memsampd.sampler.perf.watch import WatchOrder
from memsampd.sampler.perf.watchpoints import Watchpoints
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.maps import read_maps
from memsampd.sampler.protocols import BranchSource
from memsampd.sampler.records import BranchSamples

TRIES = 20
becomes_another_user = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
rings_are_limited = pytest.mark.skipif(
    (read_paranoid() or 0) < 0,
    reason="kernel.perf_event_paranoid is -1: memory of rings is not limited",
)

# Computes in pieces of some milliseconds: for so much CPU time of the thread, or until it is told.
PRELUDE = """
import hashlib, os, select, sys, threading, time
def compute():
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 3000)
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        compute()
def burn_until_told():
    while not select.select([0], [], [], 0)[0]:
        compute()
def go():
    print("ready", flush=True)
    os.read(0, 1)
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
        """Tell it to go on, or that it has burnt enough."""
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


def joined(source: TaskClockSource, parts: list[BranchSamples]) -> BranchSamples:
    """What was read in parts, as one record; each is in order."""
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


def read_all(source: TaskClockSource) -> BranchSamples:
    """Everything until the target has ended."""
    parts = [source.read(0.1)]
    while not source.ended:
        parts.append(source.read(0.1))
    return joined(source, parts)


def read_until(
    source: TaskClockSource,
    is_enough: Callable[[BranchSamples], bool] = lambda found: len(found) > 0,
) -> BranchSamples:
    """Everything until it is enough, of a target that goes on."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    found = source.read(0.1)
    while not is_enough(found):
        assert time.monotonic() < give_up, f"{len(found)} samples"
        found = joined(source, [found, source.read(0.1)])
    return found


def cpu_seconds_of(pid: int, start_ns: int) -> float:
    """CPU time of a process that has just exited, from its zombie."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return (process_cpu_ns(pid) - start_ns) * 1e-9


def assert_covers(share_of_a_run: Callable[[], float], most: float = 1.15) -> None:
    """Samples stand for the CPU time: for all of it, and never for more.

    Where the host of a virtual machine keeps a CPU to itself, one late interrupt stands for several
    periods: such runs are repeated. Twice the threads, or half of them, would be 2 or a half.

    Args:
        share_of_a_run: observes a program; CPU time that its samples stand for, by its CPU time.
        most: that it may be.
    """
    shares = []
    for _ in range(TRIES):
        shares.append(share_of_a_run())
        assert shares[-1] < most
        if shares[-1] > 0.8:
            return
    pytest.fail(f"samples never stood for the CPU time: {shares}")


@pytest.mark.parametrize("period_seconds", [1e-3, 0.25e-3])
def test_a_sample_stands_for_a_period_of_cpu_time(
    programs: list[Program], period_seconds: float
) -> None:
    def run() -> float:
        program = Program("go(); burn(0.3)")
        programs.append(program)
        start_ns = process_cpu_ns(program.pid)
        with TaskClockSource(program.pid, period_seconds=period_seconds) as source:
            assert isinstance(source, BranchSource)
            program.go()
            samples = read_all(source)
            cpu_seconds = cpu_seconds_of(program.pid, start_ns)
        assert samples.lost == 0
        assert set(samples.pid.tolist()) == set(samples.tid.tolist()) == {program.pid}
        # Where interrupts seem slow, as on a host that is busy itself, the kernel throttles them.
        return 0.0 if samples.throttled else len(samples) * period_seconds / cpu_seconds

    assert_covers(run)


def test_samples_lie_in_code_that_the_program_runs() -> None:
    with busy_child() as child, TaskClockSource(child.pid) as source:
        space = read_maps(child.pid)
        samples = read_until(source, lambda found: len(found) > 20)
    paths = [mapping.path if mapping else "" for ip in samples.ip if (mapping := space.find(ip),)]
    assert sum("_core" in path for path in paths) > 0.9 * len(paths)


def test_threads_before_and_after_attach_are_sampled_once(programs: list[Program]) -> None:
    def run() -> float:
        program = Program("""
            early = [threading.Thread(target=lambda: (gate.wait(), burn(0.1))) for _ in range(3)]
            gate = threading.Event()
            [t.start() for t in early]
            go()
            gate.set()
            for _ in range(5):
                late = [threading.Thread(target=burn, args=(0.05,)) for _ in range(2)]
                [t.start() for t in late]; [t.join() for t in late]
        """)
        programs.append(program)
        start_ns = process_cpu_ns(program.pid)
        with TaskClockSource(program.pid, period_seconds=1e-3) as source:
            program.go()
            samples = read_all(source)
            events = source.take_events()
            cpu_seconds = cpu_seconds_of(program.pid, start_ns)
            assert source.take_events() == ()
        births = {event.tid for event in events if event.kind == "fork"}
        deaths = {event.tid for event in events if event.kind == "exit"}
        sampled = set(samples.tid.tolist())
        assert len(births) == 10
        assert births < sampled <= deaths
        assert len(sampled - births - {program.pid}) == 3
        assert program.pid in deaths
        return len(samples) * samples.period_seconds / cpu_seconds

    assert_covers(run)


def test_attach_amid_a_storm_of_new_threads(programs: list[Program]) -> None:
    # Threads far longer than a period: one that ends within its first gives no sample at all.
    def run() -> float:
        program = Program("""
            def storm():
                for _ in range(40):
                    t = threading.Thread(target=burn, args=(0.01,))
                    t.start(); t.join()
            stormers = [threading.Thread(target=storm) for _ in range(3)]
            [t.start() for t in stormers]
            go()
            [t.join() for t in stormers]
        """)
        programs.append(program)
        program.go()
        start_ns = process_cpu_ns(program.pid)
        with TaskClockSource(program.pid) as source:
            samples = read_all(source)
            cpu_seconds = cpu_seconds_of(program.pid, start_ns)
        return len(samples) * samples.period_seconds / cpu_seconds

    # A thread counted twice would give more samples than there is CPU time.
    assert_covers(run, most=1.05)


def test_threads_that_ended_are_gone_after_their_last_samples(programs: list[Program]) -> None:
    program = Program("""
        go()
        late = [threading.Thread(target=burn, args=(0.02,)) for _ in range(20)]
        [t.start() for t in late]; [t.join() for t in late]
        burn_until_told()
    """)
    programs.append(program)
    options = SamplerOptions(program.pid, 1_000_000, 1600, 1 << 17, False)
    sampled, gone = set[int](), set[int]()
    with closing(SampleStream(options)) as stream:
        program.go()
        while len(gone) < 20:
            found = stream.read(0.01)
            gone |= set(found.gone)
            tids = set(found.samples["tid"].tolist())
            assert not tids & gone
            sampled |= tids
        program.go()
    assert gone & sampled
    assert program.pid in sampled - gone


FORKING = """
    go()
    child = os.fork()
    burn_until_told()
    if child: os.waitpid(child, 0)
"""


def test_child_processes_are_left_alone(programs: list[Program]) -> None:
    program = Program(FORKING)
    programs.append(program)
    with TaskClockSource(program.pid) as source:
        program.go()
        first = read_until(source)
        program.go()
        rest = read_all(source)
        assert set(first.pid.tolist()) | set(rest.pid.tolist()) == {program.pid}
        assert source.notes == ()


@pytest.mark.parametrize("follow_forks", [False, True])
def test_the_kernel_itself_follows_or_not(programs: list[Program], follow_forks: bool) -> None:
    program = Program("go(); child = os.fork(); burn(0.1); child and os.waitpid(child, 0)")
    programs.append(program)
    options = SamplerOptions(program.pid, 1_000_000, 1600, 1 << 17, follow_forks)
    with closing(PerCpuRings(options, online_cpus())) as rings:
        program.go()
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        pids = set(rings.drain().samples["pid"].tolist())
    assert len(pids) == (2 if follow_forks else 1)


def test_child_processes_are_followed_if_asked(programs: list[Program]) -> None:
    program = Program(FORKING)
    programs.append(program)
    with TaskClockSource(program.pid, follow_forks=True) as source:
        program.go()
        pids = set(read_until(source, lambda found: len(set(found.pid.tolist())) == 2).pid.tolist())
        program.go()
        read_all(source)
        events = source.take_events()
    born = [event for event in events if event.kind == "fork" and event.pid != program.pid]
    assert [event.parent_pid for event in born] == [program.pid]
    assert pids == {program.pid, born[0].pid}


def test_exec_is_told_and_survived(programs: list[Program]) -> None:
    code = PRELUDE + "burn_until_told()"
    program = Program(f"go(); os.execv(sys.executable, [sys.executable, '-c', {code!r}])")
    programs.append(program)
    events: list[TaskEvent] = []

    def is_behind(found: BranchSamples) -> bool:
        events.extend(event for event in source.take_events() if event.kind == "exec")
        return bool(events) and bool((found.time_seconds > events[0].time_seconds).any())

    with TaskClockSource(program.pid) as source:
        program.go()
        read_until(source, is_behind)
    assert [event.tid for event in events] == [program.pid]
    assert events[0].command == os.path.basename(sys.executable)[:15]


def test_the_end_is_told_and_reading_goes_on_empty(programs: list[Program]) -> None:
    program = Program("go(); burn_until_told()")
    programs.append(program)
    with TaskClockSource(program.pid) as source:
        program.go()
        read_until(source)
        assert not source.ended
        program.go()
        read_all(source)
        assert source.ended
        assert len(source.read(10.0)) == 0
        source.close()
        source.close()
        assert len(source.read(10.0)) == 0


def test_nothing_is_left_open(programs: list[Program]) -> None:
    program = Program("go()")
    programs.append(program)

    def mapped() -> int:
        return sum("perf_event" in m.path for m in read_maps(os.getpid()).mappings)

    before = descriptors(), mapped()
    source = TaskClockSource(program.pid)
    assert mapped() > before[1]
    source.close()
    assert (descriptors(), mapped()) == before


def test_a_full_ring_is_counted_as_lost(programs: list[Program]) -> None:
    def run() -> float:
        program = Program("go(); burn(0.3); go(); burn(0.3)")
        programs.append(program)
        start_ns = process_cpu_ns(program.pid)
        with TaskClockSource(program.pid, period_seconds=1e-4, ring_bytes=4096) as source:
            program.go()
            program.wait_ready()
            first = source.read(
                0.0
            )  # frees the ring: the next record brings the count of lost ones
            program.go()
            rest = read_all(source)
            cpu_seconds = cpu_seconds_of(program.pid, start_ns)
        assert first.overflowed
        assert rest.lost > 0
        return (first.lost + rest.lost + len(first) + len(rest)) * 1e-4 / cpu_seconds

    assert_covers(run, most=1.2)


def test_without_descriptors_enough_threads_are_looked_for(programs: list[Program]) -> None:
    program = Program("""
        go()
        late = [threading.Thread(target=burn_until_told) for _ in range(2)]
        [t.start() for t in late]; [t.join() for t in late]
        burn_until_told()
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
        found = read_until(source, lambda found: len(set(found.tid.tolist()) - {program.pid}) == 2)
        program.go()
        found = joined(source, [found, read_all(source)])
        cpu_seconds = cpu_seconds_of(program.pid, start_ns)
    assert set(found.pid.tolist()) == {program.pid}
    assert len(found) * found.period_seconds < 1.15 * cpu_seconds  # none is counted twice


def test_a_thread_that_executes_a_program_is_sampled_once(programs: list[Program]) -> None:
    """It has the first thread's id then, and the event that was its own."""
    code = PRELUDE + "go(); burn_until_told()"
    program = Program(f"""
        def execute():
            go()
            os.execv(sys.executable, [sys.executable, "-c", {code!r}])
        threading.Thread(target=execute).start()
        time.sleep(1e6)
    """)
    programs.append(program)
    options = SamplerOptions(program.pid, 1_000_000, 1600, 1 << 17, False)
    with closing(PerThreadRings(options, "")) as rings:
        assert len(rings.sampling_files()) == 2
        program.go()
        program.wait_ready()
        rings.wait(0.0)
        assert rings.opened_threads() == [program.pid]
        program.go()
        while program.pid not in rings.drain().samples["tid"]:
            rings.wait(0.1)


def test_the_soft_limit_is_raised(programs: list[Program]) -> None:
    program = Program("go(); burn_until_told()")
    programs.append(program)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, hard))
        with TaskClockSource(program.pid) as source:
            assert source.notes == ()
            program.go()
            read_until(source)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_threads_that_come_later_leave_descriptors_for_others(programs: list[Program]) -> None:
    """They are looked for, and the soft limit is raised for them as far as it goes."""
    program = Program("""
        go()
        late = [threading.Thread(target=burn_until_told) for _ in range(5)]
        [t.start() for t in late]
        go()
    """)
    programs.append(program)

    def tell() -> str:
        options = SamplerOptions(program.pid, 1_000_000, 1600, 1 << 14, False)
        used = len(descriptors()) - 1  # to look at them takes one
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, used + 128 + 3))
        with closing(PerThreadRings(options, "")) as rings:
            program.go()
            program.wait_ready()
            rings.wait(0.0)
            rings.peek()
            assert 1 < len(rings.opened_threads()) <= 3  # others are to have 128
            assert sum("descriptors" in note for note in rings.notes) == 1
            kept = [os.dup(0) for _ in range(100)]
            for each in kept:
                os.close(each)
        return "so it is"

    assert _told_by_a_child(tell) == "so it is"
    program.go()


@pytest.mark.parametrize("is_per_cpu", [False, True])
def test_who_finds_no_descriptors_at_one_resume_finds_them_at_another(
    programs: list[Program], is_per_cpu: bool
) -> None:
    """Others had them meanwhile; the program has as many threads as before."""
    program = Program("threading.Thread(target=go).start(); time.sleep(1e6)")
    programs.append(program)

    def tell() -> str:
        options = SamplerOptions(program.pid, 1_000_000, 1600, 1 << 14, False)
        rings: Rings = PerThreadRings(options, "")
        if is_per_cpu:
            rings.close()
            rings = PerCpuRings(options, online_cpus())
        with closing(rings):
            rings.suspend()
            free = 2 * len(online_cpus())
            hard = len(descriptors()) - 1 + 128 + free  # to look at them takes one
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            kept = [os.dup(0) for _ in range(free)]
            for _ in range(2):
                rings.resume()
                assert rings.opened_threads() == []
                rings.suspend()
            for each in kept:
                os.close(each)
            rings.resume()
            return f"{len(rings.opened_threads())} threads"

    assert _told_by_a_child(tell) == "2 threads"


def test_a_target_takes_no_more_descriptors_than_its_share() -> None:
    with busy_child() as child:
        with closing(TaskClockSource(child.pid, cpus=[0, 0], most_files=1)) as source:
            assert any("descriptors" in note for note in source.notes)
        with pytest.raises(CapabilityError, match="its share"):
            TaskClockSource(child.pid, most_files=0)


def test_both_layouts_see_the_same_program(programs: list[Program]) -> None:
    def run() -> float:
        program = Program("go(); burn(0.3)")
        programs.append(program)
        options = SamplerOptions(program.pid, 1_000_000, 1600, 1 << 17, False)
        with (
            closing(PerCpuRings(options, online_cpus())) as per_cpu,
            closing(PerThreadRings(options, "")) as per_thread,
        ):
            program.go()
            os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
            counts = []
            for drained in (per_cpu.drain(), per_thread.drain()):
                assert drained.lost == 0
                counts.append(len(drained.samples))
        return min(counts) / max(counts)

    assert_covers(run)


def test_memory_that_allows_no_ring() -> None:
    before = descriptors()
    with busy_child() as child, pytest.raises(CapabilityError, match="ring buffer") as caught:
        TaskClockSource(child.pid, ring_bytes=1 << 60)
    assert "perf_event_mlock_kb" in caught.value.remedy
    assert descriptors() == before


def _told_by_a_child(tell: Callable[[], str]) -> str:
    """What a process of its own, which may make itself smaller, has to tell."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE_SECONDS))
        try:
            answer = tell()
        except BaseException as error:
            answer = repr(error)
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def _become_ordinary(uid: int = 65534) -> None:
    os.setgid(65534)
    os.setuid(uid)
    # PR_SET_DUMPABLE, which setuid cleared: as in an ordinary process
    ctypes.CDLL(None).prctl(4, 1)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))


def _rings_of_an_ordinary_user() -> str:
    answer = "nothing"
    _become_ordinary()
    try:
        with busy_child() as busy:
            source = TaskClockSource(busy.pid, ring_bytes=1 << 22)
            read_until(source)
            is_smaller = source.ring_samples < (1 << 22) // RECORD_BYTES
            answer = "read;" if is_smaller else "told to be as large as was asked for"
            TaskClockSource(busy.pid)  # there is nothing left of the limit
    except CapabilityError as error:
        answer += f" {error}"
    return answer


@becomes_another_user
@rings_are_limited
def test_an_ordinary_user_gets_smaller_rings() -> None:
    """The locked memory of ordinary users is limited to about half a MiB a CPU."""
    answer = _told_by_a_child(_rings_of_an_ordinary_user)
    assert answer.startswith("read; a ring buffer for samples cannot be mapped")
    assert "perf_event_mlock_kb" in answer


def _wait_until_it_runs(pid: int) -> None:
    cancelled, _ = os.pipe()
    wait_until_one_runs([pid], PATIENCE_SECONDS, cancelled)


def _limit_kib() -> int:
    """What the rings of an ordinary user may have of memory."""
    a_cpu_kib = int(Path("/proc/sys/kernel/perf_event_mlock_kb").read_text())
    return a_cpu_kib * len(online_cpus())


def _fill_with_rings(pid: int) -> list[_core.PerfRing]:
    """Rings that leave no room for another one, of few events: descriptors are limited, too."""
    rings = list[_core.PerfRing]()
    ring_bytes = 1 << (_limit_kib().bit_length() + 9)
    while ring_bytes >= mmap.PAGESIZE:
        fd = _core.perf_open_sampler(pid, -1, 1_000_000, 1, _core.INHERIT_NOTHING)
        try:
            rings.append(map_ring(fd, SamplerOptions(pid, 1_000_000, 1600, ring_bytes, False)))
        except NoRoomForRingError:
            ring_bytes //= 2
        os.close(fd)
    return rings


def _refusal_without_room(use: Callable[[int], object]) -> str:
    """What that says once all locked memory of a user, whom no other test is, is in rings."""
    _become_ordinary(65533)
    with busy_child() as busy:
        rings = _fill_with_rings(busy.pid)
        try:
            use(busy.pid)
        except CapabilityError as error:
            return str(error)
    return f"nothing, beside {len(rings)} rings"


@becomes_another_user
@rings_are_limited
@pytest.mark.parametrize(
    "use",
    [
        lambda pid: Watchpoints().start(WatchOrder((0x4000,), pid, 1.0)),
        lambda pid: Arrival(pid, [0x4000]),
        _wait_until_it_runs,
    ],
)
def test_who_has_no_room_for_a_ring_is_told_so(use: Callable[[int], object]) -> None:
    """The kernel says EPERM, as of events that are forbidden."""
    told = _told_by_a_child(partial(_refusal_without_room, use))
    assert "a ring buffer for samples cannot be mapped" in told
    assert "perf_event_mlock_kb" in told


def _spin_in_threads(told: int, threads: int) -> None:
    """A thread, and once it is told so many, that use CPU time by turns."""

    def spin() -> None:
        while True:
            pass

    os.read(told, 1)
    for _ in range(threads - 1):
        threading.Thread(target=spin, daemon=True).start()
    spin()


def _sampled_threads(threads: int) -> str:
    """As an ordinary user, sample a process that comes to have so many threads."""
    told, tell = os.pipe()
    _become_ordinary()
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(PATIENCE_SECONDS))
        _spin_in_threads(told, threads)
    try:
        options = SamplerOptions(pid, 1_000_000, 1600, 1 << 18, False)
        with closing(PerThreadRings(options, "")) as rings:
            os.write(tell, b".")
            sampled: set[int] = set()
            while len(sampled) < threads:
                rings.wait(0.1)
                sampled |= set(rings.drain().samples["tid"].tolist())
            return f"all, {len(rings.notes)} note, {rings.ring_bytes < 1 << 18}"
    finally:
        os.kill(pid, signal.SIGKILL)


@becomes_another_user
@rings_are_limited
def test_threads_that_begin_later_have_smaller_rings_if_need_be() -> None:
    threads = _limit_kib() // (256 + 4) + 1  # one more than has room
    if threads > 200:
        pytest.skip(f"{threads} threads would be needed, so much memory may be locked here")
    assert _told_by_a_child(partial(_sampled_threads, threads)) == "all, 1 note, True"


@pytest.mark.parametrize("most_files", [None, 1])
def test_samples_that_were_looked_at_are_read_all_the_same(
    programs: list[Program], most_files: int | None
) -> None:
    """Those that came since the last look are told, if they are enough; an exec hides them."""
    program = Program("go(); burn_until_told(); os.read(0, 1); go(); os.execlp('true', 'true')")
    programs.append(program)
    with closing(TaskClockSource(program.pid, most_files=most_files)) as source:
        program.go()
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not len(looked := source.latest(12)):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        while not len(source.latest(1)):  # there is another one to be told
            assert time.monotonic() < give_up
            time.sleep(0.01)
        program.go()
        program.wait_ready()
        source.latest(1)
        assert len(source.latest(1)) == 0
        told = source.read(0.1)
        assert set(looked.time_seconds) <= set(told.time_seconds)
        assert len(looked) == 12 < len(told)
        program.go()
        program.process.wait()
        assert len(source.latest(1)) == 0
        source.read(0.1)
        assert "exec" in [event.kind for event in source.take_events()]


def test_who_looks_sees_the_process_itself_and_not_its_children(programs: list[Program]) -> None:
    """Though what came last is of a child."""
    program = Program("""
        while True:
            go()
            burn(0.1)
            child = os.fork()
            if not child:
                burn(0.1)
                os._exit(0)
            os.waitpid(child, 0)
    """)
    programs.append(program)
    give_up = time.monotonic() + PATIENCE_SECONDS
    with TaskClockSource(program.pid, follow_forks=True) as source:
        while not len(looked := source.latest(12)):
            assert time.monotonic() < give_up
            program.go()
            program.wait_ready()
    assert set(looked.pid.tolist()) == {program.pid}
