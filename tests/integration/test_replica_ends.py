"""Programs that end or become others while they are observed, and such as cannot be."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from needed import tool
from tracees import observed, running, sleeps, tries
from watchful import compile_watchful, outcome, tell

from memsampd.errors import CaptureError, MemsampdError
from memsampd.sampler.process.status import read_status
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource


@pytest.mark.parametrize("words", ["execs 1000000 0.05", "execs_by_thread 1000000 0.03"])
def test_exec_at_any_moment(words: str, tmp_path: Path) -> None:
    name, *arguments = words.split()
    with running(compile_watchful(tmp_path, name), *arguments, "ready") as process:
        assert outcome(process, attaches=15, every_thread=True, max_accesses=100_000) == "right"


def test_an_exec_waits_for_no_sibling_for_good(tmp_path: Path) -> None:
    """All programs of a row come to their end, each replaced by a thread while others are held.

    Each goes on for long enough to be observed.
    """
    program = compile_watchful(tmp_path, "execs_by_thread")
    bursts = 0
    for _ in tries():
        with running(program, "3", "0.3", "ready") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with observed(process.pid, every_thread=True, max_accesses=1_000_000) as tally:
                assert process.stdout.read() == "right\n"
            assert process.wait() == 0
        bursts += tally.bursts
        if bursts >= 24:
            break


def test_exit_at_any_moment(tmp_path: Path) -> None:
    program = compile_watchful(tmp_path, "execs")
    have_been_observed = 0
    for _ in tries():
        with running(program, "1", "0.2") as process, observed(process.pid) as tally:
            assert process.stdout is not None
            assert process.stdout.read() == "right\n"
        assert process.wait() == 0
        have_been_observed += tally.bursts > 0
        if have_been_observed == 8:
            break


@pytest.mark.parametrize("is_first_gone", [0, 1])
def test_a_thread_ends_the_process_while_others_are_held(
    is_first_gone: int, tmp_path: Path
) -> None:
    program = compile_watchful(tmp_path, "exits")
    for _ in range(6):
        with running(program, str(is_first_gone)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with observed(process.pid, every_thread=True, max_accesses=1_000_000) as tally:
                tally.wait(lambda tally=tally: tally.bursts >= 2)  # type: ignore[misc]
                tell(process)
                assert process.stdout.read() == ""
            assert process.wait() == 7


def test_one_that_is_killed_at_any_moment_is_dead_at_once(tmp_path: Path) -> None:
    program = compile_watchful(tmp_path, "children")
    for _ in range(8):
        with running(program) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with observed(process.pid) as tally:
                tally.wait(lambda tally=tally: tally.bursts >= 1)  # type: ignore[misc]
                os.kill(process.pid, signal.SIGKILL)
                assert process.stdout.read() == ""
            assert process.wait() == -signal.SIGKILL


def test_a_sleeper_is_refused(tmp_path: Path) -> None:
    with running(compile_watchful(tmp_path, "sleeper")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while not sleeps(process.pid):
            time.sleep(0.01)
        with closing(ReplicaSource(process.pid)) as source, pytest.raises(CaptureError) as caught:
            source.capture(BurstRequest(process.pid, 100))
    assert caught.value.reason == "not-running"
    assert caught.value.cost.replica_cpu_seconds > 0  # it was started


def reads() -> int:
    """How often this thread has read a file so far."""
    lines = Path("/proc/thread-self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("syscr")).split()[1])


def test_one_that_a_debugger_holds_is_refused(tmp_path: Path) -> None:
    # One without signals: a debugger that ends throws those away that it was about to hand on.
    with running(compile_watchful(tmp_path, "busy")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        debugger: list[str | Path] = [
            tool("strace", "strace"),
            "-f",
            "-o",
            tmp_path / "calls",
            "-p",
            str(process.pid),
        ]
        with running(*debugger, stderr=subprocess.DEVNULL) as strace:
            while read_status(process.pid).tracer_pid != strace.pid:
                time.sleep(0.01)
            caught = None
            with closing(ReplicaSource(process.pid)) as source:
                while caught is None or caught.reason == "not-running":
                    before = reads()
                    with pytest.raises(CaptureError) as refused:
                        source.capture(BurstRequest(process.pid, 100))
                    caught, looks = refused.value, reads() - before
            strace.terminate()
            strace.wait()
        assert caught.reason == "refused"
        assert "tracer" in str(caught.remedy)
        assert looks < 1000  # nobody waits for it to be traced no more
        tell(process)
        assert process.stdout.read().strip() == "right"


def test_a_target_that_executes_another_program_is_followed() -> None:
    loop = "print('there', flush=True)\nwhile True: {i: str(i) for i in range(999)}"
    code = (
        "import os, sys; print('here', flush=True); sys.stdin.readline(); "
        f"os.execv(sys.executable, ['x', '-c', {loop!r}])"
    )
    with running(sys.executable, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        with closing(ReplicaSource(process.pid)) as source:
            tell(process)
            assert process.stdout.readline() == "there\n"
            accesses = 0
            while accesses == 0:
                with suppress(MemsampdError):
                    accesses = source.capture(BurstRequest(process.pid, 100)).accesses


def test_a_target_that_executes_a_32_bit_program_is_not_held(tmp_path: Path) -> None:
    """What broke a call off there could not be set right."""
    program = tmp_path / "spinning"
    base, header_bytes, code = 0x08048000, 52 + 32, b"\xeb\xfe"  # jmp to itself
    size = header_bytes + len(code)
    program.write_bytes(
        b"\x7fELF\x01\x01\x01"
        + bytes(9)
        + struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + header_bytes, 52, 0, 0, 52, 32, 1, 40, 0, 0)
        + struct.pack("<8I", 1, 0, base, base, size, size, 5, 0x1000)
        + code
    )
    program.chmod(0o755)
    execute = f"import os, sys; sys.stdin.readline(); os.execv({str(program)!r}, ['x'])"
    with (
        running(sys.executable, "-c", execute) as process,
        closing(ReplicaSource(process.pid)) as source,
    ):
        tell(process)
        while os.readlink(f"/proc/{process.pid}/exe") != str(program):
            if process.poll() is not None:
                pytest.skip("no 32-bit programs here")
        for _ in range(3):
            with pytest.raises(CaptureError) as refused:
                source.capture(BurstRequest(process.pid, 100))
            assert refused.value.reason == "not-64-bit"
            assert refused.value.cost.stop_seconds == 0.0
