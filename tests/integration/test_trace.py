"""Traces of real processes through the real command line, and of real text of lackey."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import tracees
from commands import MEMSAMPD, memsampd
from lackey_text import obvious
from needed import tool
from tracing_rows import read_trace
from waiting import wait_for

from memsampd.exporters.trace import BurstStart, TraceReader

# Reads an array of 8-byte words in order, over and over, and says where it is.
SCANNER = r"""
#include <stdio.h>
enum { WORDS = 1000 };
static volatile long words[WORDS];
int main(void)
{
    printf("%p\n", (void *)words);
    fflush(stdout);
    for (long sum = 0;;)
        for (int i = 0; i < WORDS; i++)
            sum += words[i];
}
"""
# The first thread sleeps; two others work, one of them three times as much as the other.
THREADS = r"""
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long sink;
static void *work(void *unused)
{
    (void)unused;
    printf("%ld\n", syscall(SYS_gettid));
    fflush(stdout);
    for (;;)
        sink++;
}
int main(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    pthread_create(&thread, NULL, work, NULL);
    pthread_join(thread, NULL);
}
"""


@pytest.fixture(scope="module")
def scanner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tracees.compile_c(tmp_path_factory.mktemp("c"), SCANNER)


def trace(*words: str | Path | int) -> subprocess.CompletedProcess[str]:
    return memsampd("trace", *words, timeout_seconds=400)


@contextmanager
def started(*words: str | Path | int) -> Iterator[subprocess.Popen[str]]:
    """A trace that goes on while the body runs, in a session of its own; dead afterwards."""
    command = (MEMSAMPD, "trace", *map(str, words))
    with tracees.running(*command, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for_bursts(process: subprocess.Popen[str], path: Path) -> None:
    """Wait until a living process has written some."""

    def are_there() -> bool:
        assert process.poll() is None, process.communicate()
        return path.exists() and path.stat().st_size > 2000

    wait_for(are_there)


# For a machine that is busy with other things; nothing is asserted on it.
PATIENTLY = ("--deadline", "100", "--max-stop", "1")
ENDLESS = ("--accesses", "300", "--bursts", "1000000", *PATIENTLY)


def starts(path: Path) -> list[BurstStart]:
    with TraceReader(path) as reader:
        return [burst.start for burst in reader]


def test_a_trace_has_what_the_process_did(scanner: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with tracees.running(scanner) as target:
        assert target.stdout is not None
        base = int(target.stdout.readline(), 16)
        done = trace(target.pid, "-o", path, "--accesses", "3000", "--bursts", "3", *PATIENTLY)
        assert done.returncode == 0, done.stderr
        assert target.poll() is None
        assert tracees.wait_until_clean(target.pid) == []
    assert "3 bursts, 9000 accesses" in done.stderr
    bursts, finishes, message = read_trace(path)
    assert message == ""
    assert [finish.end for finish in finishes] == ["full"] * 3
    for burst, finish in zip(bursts, finishes, strict=True):
        assert len(burst) == 3000
        assert finish.instructions > 3000
        assert finish.stopped_seconds is not None
        assert finish.cost.stop_seconds > 0
        scan = [row for row in burst if base <= row[1] < base + 8000]
        assert len(scan) > 900
        assert len({ip for ip, *_ in scan}) == 1
        assert all((size, write) == (8, False) for _, _, size, write in scan)
        first = (scan[0][1] - base) // 8
        expected = [base + (first + i) % 1000 * 8 for i in range(len(scan))]
        assert [address for _, address, *_ in scan] == expected
    assert [start.tid for start in starts(path)] == [target.pid] * 3
    cpu = [start.cpu_seconds for start in starts(path)]
    assert cpu == sorted(cpu)  # type: ignore[type-var]

    with TraceReader(path) as reader:
        assert reader.header.target.pid == target.pid
        assert reader.header.source == "replica"
        assert reader.header.start_unix_seconds == pytest.approx(time.time(), abs=600)
    shown = trace("info", path)
    assert "3 bursts, 9000 rows" in shown.stdout
    dumped = trace("dump", path, "--limit", "10").stdout.splitlines()
    accesses = [line for line in dumped if not line.startswith("#")]
    assert len(accesses) == 10
    ip, address, size, write = bursts[0][0]
    assert accesses[0].endswith(f"[0] {ip:x}: {'LS'[write]} {address:x},{size}")


def test_threads_are_chosen_or_named(tmp_path: Path) -> None:
    program = tracees.compile_c(tmp_path, THREADS)
    path = tmp_path / "x"
    with tracees.running(program) as target:
        assert target.stdout is not None
        busy = {int(target.stdout.readline()) for _ in range(2)}
        options = ["--accesses", "20", "--interval", "0.02", *PATIENTLY]
        done = trace("-o", path, *options, "--bursts", "28", target.pid)
        assert done.returncode == 0, done.stderr
        chosen = {start.tid for start in starts(path)}
        assert chosen <= busy
        assert chosen == busy  # by chance not so once in 10**8 times
        one = max(busy)
        assert (
            trace("-fo", path, *options, "--tid", one, "--bursts", "3", target.pid).returncode == 0
        )
        assert [start.tid for start in starts(path)] == [one] * 3
        done = trace("-fo", path, "--tid", "1", target.pid)
        assert (done.returncode, "is no thread of process" in done.stderr) == (1, True)
        assert tracees.wait_until_clean(target.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_whole_file(
    scanner: Path, tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "x"
    with tracees.running(scanner) as target:
        with started(target.pid, "-o", path, *ENDLESS) as process:
            wait_for_bursts(process, path)
            process.send_signal(number)
            _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert target.poll() is None
        assert tracees.wait_until_clean(target.pid) == []
    assert f"ended: {number.name}" in errors
    assert "Traceback" not in errors
    bursts, _, message = read_trace(path)
    assert message == ""
    assert len(bursts) >= 1
    with TraceReader(path) as reader:
        list(reader)
        assert reader.footer is not None
        assert reader.footer.exit_reason == number.name


def test_a_kill_leaves_what_was_written(scanner: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with tracees.running(scanner) as target:
        with started(target.pid, "-o", path, *ENDLESS) as process:
            wait_for_bursts(process, path)
            process.kill()
            process.wait()
        assert tracees.wait_until_clean(target.pid) == []
    bursts, _, message = read_trace(path)
    assert "ends early" in message
    assert len(bursts) >= 1
    assert len(bursts[0]) == 300


def test_the_end_of_the_target_ends_it(scanner: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with (
        tracees.running(scanner) as target,
        started(target.pid, "-o", path, *ENDLESS) as process,
    ):
        wait_for_bursts(process, path)
        target.terminate()
        target.wait()
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "ended: the target ended" in errors
    bursts, _, message = read_trace(path)
    assert message == ""
    assert len(bursts) >= 1


def test_the_reason_of_a_refusal_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with tracees.sleeping() as target:
        done = trace(target.pid, "-o", path, "--deadline", "0.3")
        assert target.poll() is None
    assert done.returncode == 1
    assert "sleeps" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert read_trace(path) == ([], [], "")


# Works until the file has a burst.
UNTIL_TRACED = """
import os, sys
while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1]) > 2000):
    for i in range(500_000):
        pass
print("done")
sys.exit(7)
"""


def test_a_program_is_started_traced_and_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x"
    command = [sys.executable, "-c", UNTIL_TRACED, str(path)]
    done = trace("--accesses", "5000", "--bursts", "3", *PATIENTLY, "-o", path, "--", *command)
    assert (done.returncode, done.stdout) == (7, "done\n")
    bursts, _, message = read_trace(path)
    assert (1 <= len(bursts) <= 3, message) == (True, "")
    # One may stand before a system call; a last instruction may have several references.
    assert all(len(burst) < 5010 for burst in bursts)
    assert any(len(burst) > 0 for burst in bursts)
    with TraceReader(path) as reader:
        assert reader.header.command == command


def test_ctrl_c_ends_the_program_and_the_trace(scanner: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with started("-o", path, *ENDLESS, "--", scanner) as process:
        wait_for_bursts(process, path)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "Traceback" not in errors
    bursts, _, message = read_trace(path)
    assert (len(bursts) >= 1, message) == (True, "")


@pytest.mark.parametrize(
    ("words", "status"),
    [(("true",), 0), (("sh", "-c", "exit 7"), 7), (("sh", "-c", "kill -9 $$"), 137)],
)
def test_it_exits_as_the_program_does(words: tuple[str, ...], status: int, tmp_path: Path) -> None:
    done = trace("-o", tmp_path / "x", "--", *words)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_program_that_cannot_be_traced_is_left_to_finish(tmp_path: Path) -> None:
    with started("-f", "-o", "/dev/full", "--", "sh", "-c", "read line; exit 5") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        message = process.stderr.readline()
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.wait() == 5
    assert "cannot trace the program: cannot write /dev/full: No space left" in message
    assert trace("-o", tmp_path / "x", "--", "/no/such/program").returncode == 127


def test_an_existing_file_is_kept(scanner: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("dear")
    with tracees.running(scanner) as target:
        done = trace(target.pid, "-o", path)
        assert target.poll() is None
    assert (done.returncode, "exists already" in done.stderr) == (1, True)
    assert path.read_text() == "dear"


def test_real_text_of_lackey(tmp_path: Path) -> None:
    valgrind = tool("valgrind", "valgrind")
    text, path, back = (tmp_path / name for name in ("x.txt", "x.trace", "y.txt"))
    lackey = (valgrind, "--tool=lackey", "--trace-mem=yes", f"--log-file={text}")
    subprocess.run([*lackey, "gzip", "--version"], check=True, capture_output=True)
    rows, instructions = obvious(text.read_text())
    assert len(rows) > 20_000
    assert any(first[:3] == second[:3] and second[3] for first, second in itertools.pairwise(rows))
    assert trace("convert", text, "-o", path).returncode == 0
    (burst,), (finish,), message = read_trace(path)
    assert message == ""
    assert burst == rows
    assert finish.instructions == instructions
    with TraceReader(path) as reader:
        assert reader.header.target.command == "gzip"
    assert trace("convert", path, "-o", back, "--to", "lackey").returncode == 0
    assert obvious(back.read_text())[0] == rows
