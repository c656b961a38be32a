"""Programs that would report it if they noticed being observed: waits, signals, children, calls."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, cast

import pytest
from needed import tool
from tracees import children, is_gone, observed, running, write_data
from watchful import OBSERVER, compile_watchful, outcome, tell

from memsampd.errors import CaptureError
from memsampd.sampler.replica.comparison import held_replica

WAIT_KINDS = range(6)


@pytest.mark.parametrize("kind", WAIT_KINDS)
def test_waits_are_neither_interrupted_nor_cut_short(kind: int, tmp_path: Path) -> None:
    with running(compile_watchful(tmp_path, "waits"), "20", str(kind), "20") as process:
        assert outcome(process, attaches=4, bursts=15) == "right"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="nobody stops it between two steps")
@pytest.mark.parametrize("kind", WAIT_KINDS)
def test_nor_are_those_that_a_stop_breaks_off(kind: int, tmp_path: Path) -> None:
    """One that is seen at work may have begun to wait by the time that it stands."""
    with running(compile_watchful(tmp_path, "waits"), "0.05", str(kind), "2") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        broken_off = 0
        with held_replica(process.pid) as replica:
            while broken_off < 20 and not is_gone(process.pid):
                try:
                    with replica.holding(process.pid, 0):
                        pass
                except CaptureError as error:
                    broken_off += error.reason == "in-syscall"
        tell(process)
        assert process.stdout.read() == "right\n"


def test_nor_are_those_of_programs_that_do_nothing_else(tmp_path: Path) -> None:
    """All at once: they sleep, and are hardly ever caught awake."""
    program = compile_watchful(tmp_path, "waits")

    def observe(kind: int) -> str:
        with running(program, "0", str(kind), "20") as process:
            return outcome(process, attaches=4, bursts_an_attach=1)

    with ThreadPoolExecutor(len(WAIT_KINDS)) as threads:
        outcomes = dict(zip(WAIT_KINDS, threads.map(observe, WAIT_KINDS), strict=True))
    assert outcomes == dict.fromkeys(WAIT_KINDS, "right")


@pytest.mark.parametrize("name", ["children", "signals", "shared", "ignored", "vforks"])
def test_the_program_notices_nothing(name: str, tmp_path: Path) -> None:
    with running(compile_watchful(tmp_path, name)) as process:
        assert outcome(process, bursts=30, max_accesses=100_000) == "right"


def test_a_signal_ends_the_wait_that_lets_it_through(tmp_path: Path) -> None:
    with running(compile_watchful(tmp_path, "let_through")) as process:
        assert outcome(process, attaches=10, bursts_an_attach=1) == "right"


def test_its_memory_its_children_and_its_affinity_are_as_if_alone(tmp_path: Path) -> None:
    program = compile_watchful(tmp_path, "resident")
    tried = subprocess.run(["setarch", "-R", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:  # as filters of containers have it
        pytest.skip(tried.stderr.strip())
    with running("setarch", "-R", program) as process:
        assert outcome(process, bursts=15, max_accesses=50_000) == "right"


@pytest.mark.parametrize("is_ring", [0, 1])
def test_reads_past_the_page_cache_come_as_they_are(is_ring: int, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes((i * 7 >> 3) & 0xFF for i in range(1 << 20)))
    with running(compile_watchful(tmp_path, "direct"), data, str(is_ring)) as process:
        assert outcome(process, bursts=15, max_accesses=100_000) == "right"


def test_pages_that_it_supplies_itself_are_asked_for_by_itself(tmp_path: Path) -> None:
    with running(compile_watchful(tmp_path, "supplied")) as process:
        assert outcome(process, bursts=15, max_accesses=100_000) == "right"


@pytest.mark.parametrize("name", ["keys", "shadow_stack"])
def test_what_few_cpus_have_is_left_alone(name: str, tmp_path: Path) -> None:
    with running(compile_watchful(tmp_path, name)) as process:
        assert outcome(process, bursts=30, max_accesses=100_000) == "right"


def _count_calls(program: Path, rounds: int, is_observed: bool) -> tuple[dict[str, int], int]:
    """Numbers of system calls made, by kind, told by the kernel's own trace points; bursts."""
    events = ["raw_syscalls:sys_enter", "syscalls:sys_enter_restart_syscall"]
    command: list[str | Path] = [
        tool("perf", "linux-perf"),
        "stat",
        "-x,",
        *(f"-e{event}" for event in events),
        "--",
        program,
        str(rounds),
    ]
    with running(*command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as perf:
        assert perf.stdout is not None
        assert perf.stderr is not None
        tally_bursts = 0
        if is_observed and (target := _grandchild(perf, "program")) is not None:
            with observed(target, max_accesses=50_000) as tally:
                assert perf.stdout.read().strip() == "right"
            tally_bursts = tally.bursts
        assert perf.stdout.read().strip() in ("right", "")
        lines = [line.split(",") for line in perf.stderr.read().splitlines() if line.count(",") > 2]
    counts = {line[2]: int(line[0]) for line in lines if line[0].isdigit()}
    return counts, tally_bursts


def _grandchild(parent: subprocess.Popen[str], command: str) -> int | None:
    """The child of that command that a process has started; None if both have ended."""
    while parent.poll() is None:
        for child, _, name in children(parent.pid):
            if name == command:
                return child
        time.sleep(0.001)
    return None


def test_it_makes_no_call_that_it_would_not_make_alone(tmp_path: Path) -> None:
    program = compile_watchful(tmp_path, "calls")
    rounds, bursts = 3000, 0
    while bursts == 0:  # it may end before we are there
        alone, _ = _count_calls(program, rounds, False)
        if len(alone) != 2:
            pytest.skip("the kernel's trace points cannot be read")
        with_us, bursts = _count_calls(program, rounds, True)
        assert with_us == alone
        rounds *= 2


@pytest.mark.parametrize("may_suspend", [True, False])
@pytest.mark.parametrize("sleep_milliseconds", [0, 3])
@pytest.mark.parametrize("comes", ["from-the-start", "late"])
def test_a_filtered_program_lives(
    comes: str, sleep_milliseconds: int, may_suspend: bool, tmp_path: Path
) -> None:
    """Whether memsampd may suspend its filter or not: that needs CAP_SYS_ADMIN."""
    if not may_suspend and os.geteuid() != 0:
        pytest.skip("only root has a capability to drop")
    program = compile_watchful(tmp_path, "filtered")
    with running(program, str(sleep_milliseconds), comes) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        drop = [] if may_suspend else ["setpriv", "--bounding-set=-sys_admin"]
        command = [*drop, sys.executable, "-c", OBSERVER, str(process.pid), "40"]
        with running(*command) as observer:
            assert observer.stdout is not None
            assert observer.stdout.readline() == "begun\n"
            if comes == "late":
                assert first == "early\n"
                tell(process)
                first = process.stdout.readline()
            assert first == "ready\n"
            tell(observer)
            assert observer.wait() == 0
        tell(process)
        assert process.stdout.read().strip() == "right"
        assert process.wait() == 0


def test_stops_and_continues_are_neither_lost_nor_doubled(tmp_path: Path) -> None:
    with running(compile_watchful(tmp_path, "stops"), "150") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        with observed(child, max_accesses=20_000) as tally:
            tally.wait(lambda: tally.bursts >= 3)
            tell(process)
            assert process.stdout.read().strip() == "right"
        assert process.wait() == 0


def _digest(command: list[str], is_observed: bool) -> tuple[str, int]:
    """Of what a program prints; and how many bursts were taken meanwhile."""
    with running(*command, text=False, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        output = cast("IO[bytes]", process.stdout)  # text=False
        if not is_observed:
            return hashlib.sha256(output.read()).hexdigest(), 0
        with observed(process.pid, pause_seconds=0.01) as tally:
            digest = hashlib.sha256(output.read()).hexdigest()
        assert process.wait() == 0
        return digest, tally.bursts


@pytest.mark.parametrize("program", ["gzip", "xz", "sqlite3", "cc1"])
def test_output_is_the_same_byte_for_byte(program: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    sql = (
        "create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n "
        "limit 400000) insert into t select i * 7919 % 100003, hex(i) from n; create index x on "
        "t(a); select a, count(*), max(b) from t group by a having a % 100 = 3; "
    )
    if program == "cc1":
        path = subprocess.check_output(["gcc", "-print-prog-name=cc1"], text=True).strip()
        functions = (
            f"int f{n}(int *a, int n) {{ int s = {n}; for (int i = 0; i < n; i++) "
            f"s = s * a[i] + (s >> {n % 7}) - a[i ^ {n % 5}]; return s; }}"
            for n in range(250)
        )
        data = data.with_suffix(".c")
        data.write_text("\n".join(functions))
        command = [path, "-quiet", "-O2", str(data), "-o", "-"]
    elif shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    elif program == "sqlite3":
        command = [program, ":memory:", sql]
    else:
        write_data(data, 16 << 20 if program == "gzip" else 2 << 20)
        command = [program, "-9" if program == "gzip" else "-6", "-T1", "-c", str(data)]
        if program == "gzip":
            command.remove("-T1")
    alone, _ = _digest(command, False)
    bursts = 0
    while bursts == 0:  # some take but a second
        with_us, bursts = _digest(command, True)
        assert with_us == alone
