"""Parsing of /proc files, on recorded text and on real processes."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracees import go_on, no_free_descriptors, running, sleeping
from waiting import wait_for

from memsampd.errors import CapabilityError, TargetError
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import (
    ProcessHandle,
    is_there,
    parse_stat,
    program_mark,
    read_identity,
    read_stat,
    wait_until_made,
)
from memsampd.sampler.process.maps import AddressSpace, Mapping, parse_maps, read_maps
from memsampd.sampler.process.status import parse_status, read_status, read_threads

STAT_TAIL = (
    "S 1 7 7 0 -1 4194560 1 2 3 4 150 25 0 0 20 0 1 0 4711 1000 10 184467440 "
    "0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 9"
)


@given(st.text(max_size=15))
def test_stat_survives_any_command_name(command: str) -> None:
    stat = parse_stat(f"7 ({command}) {STAT_TAIL}")
    assert (stat.pid, stat.command, stat.state, stat.parent_pid) == (7, command, "S", 1)
    assert (stat.user_ticks, stat.system_ticks, stat.start_ticks) == (150, 25, 4711)
    assert (stat.faults, stat.threads) == (1 + 3, 1)
    assert (stat.space_bytes, stat.resident_pages) == (1000, 10)


def test_stat_of_ourselves_agrees_with_psutil() -> None:
    stat, other = read_stat(os.getpid()), psutil.Process()
    assert stat.parent_pid == other.ppid()
    assert not stat.is_kernel_thread
    ticks = os.sysconf("SC_CLK_TCK")
    assert stat.start_ticks / ticks + psutil.boot_time() == pytest.approx(
        other.create_time(), abs=2
    )


def test_stat_of_a_zombie_tells_that_it_is_dead() -> None:
    with subprocess.Popen(["sh", "-c", "exit 5"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        stat = read_stat(child.pid)
    assert (stat.state, stat.is_dead) == ("Z", True)


@pytest.mark.parametrize(
    ("state", "flags", "code", "is_half_made"),
    [
        ("D", 0, 0, True),
        ("R", 0, 0x1000, False),
        ("R", 0x4, 0, False),  # it exits
        ("Z", 0, 0, False),
        ("S", 0x00200000, 0, False),  # a thread of the kernel
    ],
)
def test_what_an_exec_is_making_is_told_from_what_ends(
    state: str, flags: int, code: int, is_half_made: bool
) -> None:
    tail = STAT_TAIL.replace("S 1", f"{state} 1", 1).replace("4194560", str(flags))
    stat = parse_stat(f"7 (x) {tail.replace(' 0 0 0 0', f' {code} 0 0 0', 1)}")
    assert stat.program[0] == str(code)
    assert stat.is_half_made == is_half_made


def test_a_program_that_was_just_started_is_made_when_it_was_waited_for() -> None:
    for _ in range(50):
        with subprocess.Popen(["sleep", "1000000"]) as child:
            try:
                assert wait_until_made(child.pid)
                assert program_mark(child.pid) is not None
                assert Path(f"/proc/{child.pid}/cmdline").read_bytes() == b"sleep\0001000000\0"
            finally:
                child.kill()
    assert wait_until_made(child.pid)  # it is gone


def test_status_fields() -> None:
    status = parse_status(
        "Name:\tx\nTgid:\t7\nPid:\t9\nTracerPid:\t3\nUid:\t1\t2\t3\t4\n"
        "HugetlbPages:\t    12 kB\nCapEff:\t000001ffffffffff\nSeccomp:\t2\nPPid:\t4\n"
    )
    assert (status.tgid, status.tracer_pid, status.uid) == (7, 3, 2)
    assert (status.huge_bytes, status.seccomp_mode) == (12288, 2)
    assert status.cap_effective == 0x1FFFFFFFFFF


def test_status_of_an_old_kernel_has_zeroes() -> None:
    status = parse_status("Name:\tx\nTgid:\t7\nPid:\t7\n")
    assert (status.seccomp_mode, status.huge_bytes) == (0, 0)


def test_threads_of_a_real_process() -> None:
    code = "import threading,time\nt=threading.Thread(target=time.sleep,args=(1e6,))\nt.start()\n"
    with running(sys.executable, "-c", code + "print(1, flush=True)") as child:
        assert child.stdout is not None
        child.stdout.readline()
        threads = read_threads(child.pid)
    assert len(threads) == 2
    assert threads[0].tid == child.pid
    assert threads[0].cpu_ns > 0
    assert read_threads(child.pid) == ()


def test_maps_of_ourselves_agree_with_psutil() -> None:
    before = object()
    space = read_maps(os.getpid())
    code = {m.path for m in space.mappings if m.is_executable}
    assert os.path.realpath("/proc/self/exe") in code
    assert space.find(id(before)) is not None  # what comes later may be in memory mapped since
    heap = {m.path: m for m in space.mappings}["[heap]"]
    assert (heap.perms, heap.inode, heap.size_bytes % 4096) == ("rw-p", 0, 0)
    # Memory is mapped and given back between two looks: once they must agree.
    assert any(len(ours - theirs) < 0.1 * len(ours) for ours, theirs in _two_looks(20))


def _two_looks(times: int) -> Iterator[tuple[set[str], set[str]]]:
    for _ in range(times):
        ours = {f"{m.start:08x}-{m.end:08x}" for m in read_maps(os.getpid()).mappings}
        yield ours, {m.addr for m in psutil.Process().memory_maps(grouped=False)}


def test_maps_text() -> None:
    first, second = parse_maps(
        "00400000-00452000 r-xp 00001000 08:02 173521      /usr/bin/a name (deleted)\n"
        "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 \n"
    )
    assert first == Mapping(
        0x400000, 0x452000, "r-xp", 0x1000, "08:02", 173521, "/usr/bin/a name (deleted)"
    )
    assert (second.path, second.end) == ("", 0xFFFFFFFFFF601000)


def test_a_mapped_file_may_be_named_by_what_else_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a\r\v\f\x1c\x1d\x1e\x85\u2028\u2029b"
    path.write_bytes(bytes(4096))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ):
        assert str(path) in {each.path for each in read_maps(os.getpid()).mappings}


GAPS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=20)


def spaced(gaps: list[tuple[int, int]]) -> AddressSpace:
    """Areas from (gap before it + 1, size) each."""
    mappings, position = [], 0
    for gap, size in gaps:
        start = position + gap - 1
        position = start + size
        mappings.append(Mapping(start, position, "r--p", 0, "00:00", 0, ""))
    return AddressSpace(mappings)


def addresses(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {address for start, end in ranges for address in range(start, end)}


@given(GAPS, st.integers(0, 2500))
def test_find_agrees_with_a_linear_search(gaps: list[tuple[int, int]], address: int) -> None:
    space = spaced(gaps)
    expected = next((m for m in space.mappings if m.start <= address < m.end), None)
    assert space.find(address) == expected


def test_handle_sees_the_exit_and_survives_an_exec() -> None:
    code = "import os,sys\nsys.stdin.readline()\nos.execv('/bin/sleep',['sleep','1000000'])"
    with running(sys.executable, "-c", code) as child:
        with ProcessHandle(child.pid) as handle:
            assert handle.alive()
            go_on(child)
            wait_for(lambda: read_identity(child.pid).command == "sleep")
            assert handle.alive()
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert not handle.alive()  # a zombie now
            child.wait()
            assert not handle.alive()
        handle.close()


def test_handle_of_nothing() -> None:
    with pytest.raises(TargetError, match="is gone"):
        ProcessHandle(gone_pid())


def test_who_is_short_of_descriptors_does_not_take_a_process_for_gone() -> None:
    with sleeping() as child:
        start_ticks = read_stat(child.pid).start_ticks
        with no_free_descriptors(), pytest.raises(CapabilityError, match="Too many open files"):
            ProcessHandle(child.pid)
        with no_free_descriptors():
            assert is_there(child.pid, start_ticks)
        assert is_there(child.pid, start_ticks)
    assert not is_there(child.pid, start_ticks)


def test_identity_tells_a_reused_pid_apart(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text(f"7 (a) {STAT_TAIL}")
    first = read_identity(7, tmp_path)
    (folder / "stat").write_text(f"7 (a) {STAT_TAIL.replace('4711', '4712')}")
    assert read_identity(7, tmp_path) != first


def test_cpu_time_counts_threads_that_have_exited() -> None:
    # What the thread says of itself, and the kernel of the process after the fact.
    code = (
        "import threading,time,sys\n"
        "def work():\n"
        "    while time.thread_time_ns() < 50_000_000: sum(range(9999))\n"
        "    print(time.thread_time_ns(), flush=True)\n"
        "t=threading.Thread(target=work);t.start();t.join();print(1,flush=True);input()"
    )
    with running(sys.executable, "-c", code) as child:
        assert child.stdout is not None
        thread_ns = int(child.stdout.readline())
        child.stdout.readline()
        leader_ns = int(
            Path(f"/proc/{child.pid}/task/{child.pid}/schedstat").read_text().split()[0]
        )
        total_ns = process_cpu_ns(child.pid)
        go_on(child)
        _, _, usage = os.wait4(child.pid, 0)
        child.returncode = 0
    whole_seconds = usage.ru_utime + usage.ru_stime + 1e-5  # told in microseconds
    assert thread_ns + leader_ns <= total_ns
    assert total_ns * 1e-9 <= whole_seconds


def test_cpu_time_of_nothing() -> None:
    pid = gone_pid()
    with pytest.raises(TargetError, match="is gone"):
        process_cpu_ns(pid)
    with pytest.raises(FileNotFoundError):
        read_status(pid)


def gone_pid() -> int:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    return child.pid
