"""The main job, end to end, on real processes through the real command line."""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import pytest
import tracees
from commands import MEMSAMPD, free_port, memsampd
from needed import tool
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.cli.run import attached_to, start, status_of
from memsampd.daemon.attach import attached
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.daemon.own_cpu import ProcessCpu
from memsampd.daemon.tracer import CaptureOrder
from memsampd.daemon.tracing import TraceConfig, traced
from memsampd.errors import CapabilityError, TargetError
from memsampd.exporters.documents import target_document
from memsampd.exporters.listen import DEFAULT_LISTEN, parse_listen
from memsampd.exporters.recording import read_recording
from memsampd.exporters.snapshot import Snapshot
from memsampd.machines.machine import read_machine
from memsampd.sampler.pmu.choice import try_pmu
from memsampd.sampler.process.identity import read_stat
from memsampd.sampler.process.status import list_threads

# Two kinds of work in turn, without system calls; ends by itself, or when told to.
TWO_PHASES = """
import hashlib, signal, sys, time
end = time.monotonic() + float(sys.argv[1])
total, told = 0, []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
while time.monotonic() < end and not told:
    for _ in range(40):
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 20000)
    total += sum(len({i: str(i) for i in range(2000)}) for _ in range(900))
print("finished")
"""


# Goes round in so many bytes, a line an access, until it is told to become the program named next.
WALKING = """
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static volatile sig_atomic_t told;
static void tell(int number) { told = 1; }
int main(int count, char **words)
{
    long bytes = atol(words[1]);
    volatile char *area = calloc(bytes, 1);
    signal(SIGUSR1, tell);
    while (!told)
        for (long at = 0; at < bytes; at += 64) (void)area[at];
    execv(words[2], words + 2);
    return 1;
}
"""


def spawned() -> AbstractContextManager[subprocess.Popen[str]]:
    return tracees.running(sys.executable, "-c", TWO_PHASES, "3600")


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    with spawned() as process:
        yield process


def test_attach_records_phases_and_curves(target: subprocess.Popen[str], tmp_path: Path) -> None:
    recording = tmp_path / "a.memsampd"
    # A busy machine may let neither of them do much, and a start there takes all that is granted.
    for seconds in (4, 8, 16, 32, 64):
        words = ("attach", str(target.pid), "--duration", seconds, "--no-listen", "--own-cpu", 4)
        done = memsampd(*words, "-f", "-o", recording)
        assert done.returncode == 0, done.stderr
        assert f"{seconds} s have passed" in done.stderr
        assert target.poll() is None
        assert tracees.children(target.pid) == []
        exported = memsampd("export", str(recording), "--format", "json")
        assert exported.returncode == 0, exported.stderr
        data = json.loads(exported.stdout)
        sampled = sum(phase["sampled_accesses"] for phase in data["phases"])
        if len(data["windows"]) > 1 and sampled > 1000:
            break
    assert len(data["windows"]) > 1
    assert sampled > 1000
    assert "window 0: phase 0 (new)" in done.stdout
    assert data["backend"]["accesses"] == "replica"
    assert sum(phase["windows"] for phase in data["phases"]) == len(data["windows"])
    curve = data["overall"]["miss_ratio"]
    assert all(0 <= b <= a <= 1 for a, b in itertools.pairwise(curve))
    assert data["overhead"]["stop_seconds"] > 0


# A process and its child, which ends with it.
FAMILY = """
import os
parent = os.getpid()
child = os.fork() == 0
while not child or os.getppid() == parent:
    pass
"""


@pytest.mark.parametrize("follow_forks", [False, True])
def test_memory_is_that_of_all_who_are_in_a_window(follow_forks: bool, tmp_path: Path) -> None:
    recording = tmp_path / "a.memsampd"
    config = SessionConfig(follow_forks=follow_forks, schedule="none")
    with (
        tracees.running(sys.executable, "-c", FAMILY) as process,
        attached(process.pid, config, OutputConfig(recording)) as session,
    ):
        while session.snapshot().estimate.windows < 2:
            time.sleep(0.05)
            session.step()
        session.finish()
    windows = read_recording(recording).windows
    assert len(windows) >= 2
    # That of children is not known: misses are not to be capped by the parent's.
    assert {window.memory is None for window in windows} == {follow_forks}


# A process that hardly runs itself: it waits for its children, one after the other.
FORKS = """
import os, time
while True:
    if os.fork() == 0:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        os._exit(0)
    os.wait()
"""


def test_bursts_are_not_taken_in_place_of_those_of_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SessionConfig(follow_forks=True, own_cpu_share=1e6, budget_share=0.5)
    orders: list[CaptureOrder] = []
    with (
        tracees.running(sys.executable, "-c", FORKS) as process,
        attached(process.pid, config, OutputConfig()) as session,
    ):
        tracer = session.parts.tracer
        take = tracer.order

        def noted(order: CaptureOrder) -> None:
            orders.append(order)
            take(order)

        monkeypatch.setattr(tracer, "order", noted)
        while session.snapshot().estimate.windows < 5:
            time.sleep(0.05)
            session.step()
        told = target_document(session.snapshot())["not_known"]
    assert {tid for order in orders for tid in order.thread_samples} <= {process.pid}
    (children,) = (each["why"] for each in told if each["what"] == "children")
    assert "bursts are taken of the process itself only" in children


def windows_of(count: int, *words: str) -> tuple[list[dict[str, Any]], str]:
    """The first windows of a session, and those until it ended; its messages."""
    command = [MEMSAMPD, "attach", *words, "--no-listen", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(count)]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert process.returncode == 0, errors
    return [json.loads(line) for line in (*lines, *rest.splitlines())], errors


def test_json_is_one_object_a_window(target: subprocess.Popen[str]) -> None:
    windows, _ = windows_of(3, str(target.pid))
    numbers = [window["window"] for window in windows]  # those without a sample are left out
    assert numbers == sorted(set(numbers))
    assert all(window["phase"] >= 0 and window["samples"] > 0 for window in windows)


@pytest.mark.parametrize("way", ["run", "attach"])
def test_events_have_a_file_of_their_own(target: subprocess.Popen[str], way: str) -> None:
    """Whatever else is said on both streams, by memsampd and by the program."""
    reading, writing = os.pipe()
    spin = (sys.executable, "-c", tracees.BUSY)
    program = ("sh", "-c", 'echo "{}"; echo "{}" >&2; exec "$@"', "sh", *spin)
    whose = ("--", *program) if way == "run" else (str(target.pid),)
    command = [MEMSAMPD, way, "--no-listen", "--events", f"/dev/fd/{writing}", *whose]
    with (
        open(reading) as events,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[writing],
        ) as process,
    ):
        os.close(writing)
        told = [json.loads(events.readline()) for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate()
        told += [json.loads(line) for line in events]
    numbers = [each["window"] for each in told]
    assert numbers == sorted(set(numbers))
    assert "memsampd: ended: " in errors
    assert '"window"' not in output + errors
    if way == "run":
        assert output == "{}\n"  # the program's, and nothing of ours


def test_run_starts_nothing_if_events_cannot_be_written(tmp_path: Path) -> None:
    events, started = tmp_path / "none" / "x", tmp_path / "started"
    done = memsampd("run", "--no-listen", "--events", events, "--", "touch", started)
    assert done.returncode == 1
    assert f"error: cannot write {events}: No such file or directory; choose" in done.stderr
    assert not started.exists()


def test_another_program_has_its_own_curve_and_name(tmp_path: Path) -> None:
    small = tracees.compile_c(tmp_path, WALKING)
    large, recording = small.with_name("large"), tmp_path / "x.memsampd"
    shutil.copy(small, large)
    command = [str(small), str(16 << 10), str(large), str(256 << 10)]
    with tracees.running(*command) as target:
        observing = [MEMSAMPD, "attach", str(target.pid), "--no-listen", "--json"]
        with subprocess.Popen(
            [*observing, "-o", str(recording)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            before = first_known(process.stdout)
            target.send_signal(signal.SIGUSR1)
            after = first_known(process.stdout, "large")
            target.kill()
            process.communicate()
    at = before["sizes_bytes"].index(32 << 10)
    assert before["command"] != "large"
    assert before["whole_run"]["high"][at] < 0.2
    assert after["whole_run"]["low"][at] > 0.8
    assert after["phase"] > before["phase"]
    records = {type(record).__name__ for record in read_recording(recording).events}
    assert "ExecRecord" in records


def test_one_process_observes_two_targets_and_tells_their_costs_apart() -> None:
    process_cpu = ProcessCpu()
    told: dict[int, Snapshot] = {}

    def observe(pid: int) -> None:
        with attached(pid, SessionConfig(), OutputConfig(), process_cpu=process_cpu) as session:
            begun = time.monotonic()
            while time.monotonic() < begun + 3 or not session.snapshot().samples:
                time.sleep(0.05)
                session.step()
            told[pid] = session.snapshot()

    with spawned() as one, spawned() as other:
        programs = one, other
        threads = [threading.Thread(target=observe, args=(each.pid,)) for each in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(told) == {each.pid for each in programs}
    for pid, state in told.items():
        assert state.target.pid == pid
        assert state.samples > 0
    used = [state.overhead for state in told.values()]
    own = sum(each.own_cpu_seconds - each.replica_cpu_seconds for each in used)
    assert min(each.own_cpu_seconds for each in used) > 0
    assert own <= time.process_time()  # a cost told to both would be told twice


def first_known(lines: IO[str], command: str = "") -> dict[str, Any]:
    """The first window, of a program of this name if any, whose whole run is known at 32 KiB.

    A first burst may be cut short where all CPUs are busy, and leave all open.
    """
    for window in map(json.loads, lines):
        run, sizes = window["whole_run"], window["sizes_bytes"]
        if run["miss_ratio"] is None or command not in ("", window["command"]):
            continue
        at = sizes.index(32 << 10)
        if run["high"][at] - run["low"][at] < 0.2:
            return dict(window)
    raise AssertionError("memsampd ended before")


def test_a_session_does_not_load_masked_arrays(target: subprocess.Popen[str]) -> None:
    """They take a twelfth of the CPU time of the start; ``np.unique`` and its like load them."""
    code = (
        "import sys; from memsampd.daemon.attach import attached; "
        "from memsampd.daemon.config import OutputConfig, SessionConfig\n"
        "config = SessionConfig(duration_seconds=2.0)\n"
        f"with attached({target.pid}, config, OutputConfig(listen='127.0.0.1:0')) as session:\n"
        "    session.run()\n"
        "    samples = session.snapshot().samples\n"
        "print('numpy' in sys.modules, 'numpy.ma' in sys.modules, samples > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True"]


def test_memsampd_keeps_to_its_cpus(target: subprocess.Popen[str]) -> None:
    cpu = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(target.pid)
    command = [MEMSAMPD, "attach", str(target.pid), "--listen", "127.0.0.1:0", "--json"]
    command += ["--cpu-affinity", str(cpu), "--nice", "7", "--schedule", "all", "--own-cpu", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as observing:
        assert observing.stdout is not None
        for line in observing.stdout:
            if json.loads(line)["sampled_accesses"]:
                break
        replicas = [pid for pid, _, _ in tracees.children(observing.pid)]
        processes = (observing.pid, *replicas)
        cpus: set[frozenset[int]] = set()
        for tid in (tid for pid in processes for tid in list_threads(pid)):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                cpus.add(frozenset(os.sched_getaffinity(tid)))
        niceness = os.getpriority(os.PRIO_PROCESS, observing.pid)
        observing.send_signal(signal.SIGINT)
        observing.communicate()
    assert replicas
    assert cpus == {frozenset({cpu})}
    assert niceness == 7
    assert os.sched_getaffinity(target.pid) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(
    target: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    recording = tmp_path / "b.memsampd"
    command = [MEMSAMPD, "attach", str(target.pid), "--no-listen", "-o", str(recording)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the first window
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert f"ended: {number.name}" in errors
    assert "Traceback" not in errors
    assert tracees.children(target.pid) == []
    report = memsampd("report", str(recording))
    assert report.returncode == 0
    assert "killed" not in report.stdout


def test_the_end_of_the_target_ends_it(target: subprocess.Popen[str]) -> None:
    command = [MEMSAMPD, "attach", str(target.pid), "--no-listen"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as observing:
        assert observing.stdout is not None
        observing.stdout.readline()  # the first window
        target.send_signal(signal.SIGUSR1)
        assert target.communicate()[0] == "finished\n"
        _, errors = observing.communicate()
    assert observing.returncode == 0, errors
    assert "the target ended" in errors
    assert target.returncode == 0


def test_metrics_while_it_runs(target: subprocess.Popen[str]) -> None:
    port = free_port()
    command = [MEMSAMPD, "attach", str(target.pid), "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        text = ""
        while "memsampd_phase_miss_ratio{" not in text:
            assert process.poll() is None
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert f'pid="{target.pid}"' in text
    command = [tool("promtool", "prometheus"), "check", "metrics"]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


UNTIL_TOLD = """
import select
while not select.select([0], [], [], 0)[0]:
    sum(range(10**5))
"""


@contextmanager
def lingering(port: int) -> Iterator[subprocess.Popen[str]]:
    """Observe a program to its end, which has come; nobody has read the metrics yet."""
    words = (MEMSAMPD, "run", "--listen", f"127.0.0.1:{port}", "--linger", "3600", "--")
    program = (sys.executable, "-c", UNTIL_TOLD)
    with tracees.running(*words, *program, stderr=subprocess.PIPE) as observing:
        assert observing.stderr is not None
        said = iter(observing.stderr)
        assert any(line.startswith("window ") for line in said)
        tracees.go_on(observing)
        assert any("the target ended" in line for line in said), "it went before it was read"
        yield observing


def test_the_last_state_waits_until_it_has_been_read() -> None:
    port = free_port()
    with lingering(port) as observing:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        observing.communicate(timeout=PATIENCE_SECONDS)
    assert observing.returncode == 0
    (up,) = (line for line in text.splitlines() if line.startswith("memsampd_target_up{"))
    assert float(up.split()[-1]) == 0


def test_ctrl_c_ends_the_wait_for_a_reader() -> None:
    with lingering(free_port()) as observing:
        observing.send_signal(signal.SIGINT)
        observing.communicate(timeout=PATIENCE_SECONDS)
    assert observing.returncode == 0


def test_ctrl_z_leaves_the_target_running(target: subprocess.Popen[str]) -> None:
    options = ("--no-listen", "--schedule", "all", "--budget", "0.9", "--own-cpu", "9", "--json")
    words = (MEMSAMPD, "attach", str(target.pid), *options)
    delays = random.Random(7)
    # In a group of its own: who is in an orphaned one is not stopped.
    with tracees.running(*words, stderr=subprocess.PIPE, process_group=0) as observing:
        assert observing.stdout is not None
        while not json.loads(observing.stdout.readline())["spent_share"]:
            pass
        for _ in range(40):
            time.sleep(delays.random() * 0.05)
            observing.send_signal(signal.SIGTSTP)
            wait_for(lambda: read_stat(observing.pid).state == "T")
            assert read_stat(target.pid).state in "RS"
            observing.send_signal(signal.SIGCONT)
        observing.send_signal(signal.SIGINT)
        observing.communicate(timeout=PATIENCE_SECONDS)
    assert observing.returncode == 0
    assert target.poll() is None


@pytest.mark.parametrize(
    ("words", "status"),
    [(("true",), 0), (("sh", "-c", "exit 7"), 7), (("sh", "-c", "kill -9 $$"), 137)],
)
def test_run_exits_as_the_program_does(words: tuple[str, ...], status: int) -> None:
    done = memsampd("run", "--no-listen", "--", *words)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_run_starts_nothing_if_the_recording_exists(tmp_path: Path) -> None:
    recording, started = tmp_path / "x.memsampd", tmp_path / "started"
    recording.write_text("of yesterday")
    words = ("--no-listen", "-o", recording, "--", "touch", started)
    done = memsampd("run", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: {recording} exists already; choose another name, or --force" in done.stderr
    assert recording.read_text() == "of yesterday"
    assert not started.exists()
    assert memsampd("run", "--force", *words).returncode == 0
    assert started.exists()


def test_run_starts_nothing_if_what_is_named_as_the_store_is_none(tmp_path: Path) -> None:
    notes, started = tmp_path / "notes.txt", tmp_path / "started"
    notes.write_text("buy milk")
    words = ("--no-listen", "--store", notes, "--", "touch", started)
    done = memsampd("run", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: {notes} is no store of memsampd's; name another file" in done.stderr
    assert notes.read_text() == "buy milk"
    assert os.listdir(tmp_path) == [notes.name]
    notes.write_text("")
    assert memsampd("run", *words).returncode == 0
    assert started.exists()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("run", "--no-listen", "-o", "/proc/nowhere/x"), 1, "cannot write /proc/nowhere/x"),
        (("run", "--no-listen", "-f", "-o", "/proc"), 1, "cannot write /proc: Is a directory"),
        (("run", "--no-listen", "--cpu-affinity", "1000"), 2, "there are no such CPUs"),
        (("run", "-q", "--json"), 2, "--quiet and --json exclude each other"),
        (("trace", "-o", "/proc/nowhere/x"), 1, "cannot write /proc/nowhere/x"),
        (("trace", "-o", "/proc/version"), 1, "/proc/version exists already"),
        (("trace", "-o", "x", "--tid", "1"), 2, "--tid is for a process that runs already"),
    ],
)
def test_mistakes_are_told_before_a_program_is_started(
    words: tuple[str, ...], status: int, said: str, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    done = memsampd(*words, "--", "touch", started)
    assert done.returncode == status
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not started.exists()


@pytest.mark.parametrize("options", [("--branches", "pmu"), ("--clock", "counters")])
def test_run_starts_nothing_if_a_pmu_is_asked_for_in_vain(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    trials = try_pmu(read_machine().cpu)
    if not (trials.no_branches and trials.no_counters):
        pytest.skip("there is one")
    started = tmp_path / "started"
    done = memsampd("run", "--no-listen", *options, "--", "touch", started)
    assert done.returncode == 1
    assert done.stderr.startswith(f"memsampd: error: {' '.join(options)}: ")
    assert len(done.stderr.splitlines()) == 1
    assert not started.exists()


def test_events_of_yesterday_stay_until_there_are_others(
    target: subprocess.Popen[str], tmp_path: Path
) -> None:
    events, old = tmp_path / "events", "of yesterday\n" * 10_000
    events.write_text(old)
    options = ("--no-listen", "--events", str(events))
    assert memsampd("run", *options, "--", "/no/such/program").returncode == 127
    assert memsampd("attach", "4194000", *options).returncode == 1
    assert events.read_text() == old
    told, _ = windows_of(1, str(target.pid), "--events", str(events))
    assert [json.loads(line) for line in events.read_text().splitlines()] == told


def test_a_program_that_cannot_be_started_leaves_a_recording_as_it_was(tmp_path: Path) -> None:
    for recording in (tmp_path / "new", tmp_path / "old"):
        words = ("run", "--no-listen", "--force", "-o", recording, "--", "/no/such/program")
        (tmp_path / "old").write_text("of yesterday")
        assert memsampd(*words).returncode == 127
    assert (tmp_path / "old").read_text() == "of yesterday"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("way", ["run", "trace"])
def test_a_program_that_ended_too_soon_is_said_to_have(way: str, tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        attaching: AbstractContextManager[object] = (
            attached(process.pid, SessionConfig(), OutputConfig())
            if way == "run"
            else traced(process.pid, tmp_path / "x", TraceConfig())
        )
        with (
            pytest.raises(TargetError, match="it ended before it could be attached to; give it"),
            attached_to(process, attaching),
        ):
            pass
    done = memsampd(*(("run",) if way == "run" else ("trace", "-o", tmp_path / "x")), "--", "true")
    assert done.returncode == 0
    assert "zombie" not in done.stderr


def test_what_is_not_for_the_end_of_a_program_is_told_though_it_has_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        output = OutputConfig(listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with (
            pytest.raises(CapabilityError, match="is in use; choose another"),
            attached_to(process, attached(process.pid, SessionConfig(), output)),
        ):
            pass


def test_the_end_of_a_program_is_waited_for_whatever_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.delenv("MEMSAMPD_DEBUG", raising=False)
    assert status_of(start(["sh", "-c", "exit 5"]), fail, "observe") == 5
    assert "cannot observe the program: internal error: ZeroDivisionError: oh" in caplog.text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_run_says_when_it_cannot_observe() -> None:
    options = ("--no-listen", "-f", "-o", "/dev/full")
    command = [MEMSAMPD, "run", *options, "--", "sh", "-c", "read line; exit 5"]
    with tracees.running(*command, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        message = process.stderr.readline()
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.wait() == 5
    assert "cannot observe the program: cannot write /dev/full: No space left" in message


def test_where_the_usual_port_is_in_use_another_is_taken(tmp_path: Path) -> None:
    """As beside a daemon, or in another terminal."""
    with ExitStack() as stack:
        with suppress(OSError):  # whose else it is does not matter
            stack.enter_context(socket.create_server(parse_listen(DEFAULT_LISTEN)))
        done = memsampd("run", "--duration", "0.1", "--", "true")
        assert done.returncode == 0
        assert f"warning: {DEFAULT_LISTEN} is in use: port " in done.stderr
        assert "metrics: http://127.0.0.1:" in done.stderr
        assert "is in use; choose another" not in done.stderr
        started = tmp_path / "started"
        done = memsampd("run", "--listen", DEFAULT_LISTEN, "--", "touch", started)
        assert done.returncode == 1
        assert done.stderr.startswith(f"memsampd: error: {DEFAULT_LISTEN} is in use; choose")
        assert not started.exists()


def test_run_says_that_it_waits_for_a_program_that_goes_on() -> None:
    command = [MEMSAMPD, "run", "--no-listen", "--duration", "0.5"]
    command += ["--", "sh", "-c", "echo $$; read line; exit 5"]
    with tracees.running(*command, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        pid = process.stdout.readline().strip()
        said = (line.strip() for line in process.stderr)
        assert f"memsampd: process {pid} runs on unobserved, and its end is waited for" in said
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.wait() == 5


def test_a_program_that_goes_on_has_the_signals_of_who_lingers() -> None:
    words = (MEMSAMPD, "run", "--listen", f"127.0.0.1:{free_port()}", "--linger", "3600")
    program = ("sh", "-c", "trap 'exit 7' TERM; echo ready; while sleep 0.1; do :; done")
    command = (*words, "--duration", "0.5", "--", *program)
    with tracees.running(*command, stderr=subprocess.PIPE) as observing:
        assert observing.stdout is not None
        assert observing.stderr is not None
        assert observing.stdout.readline() == "ready\n"
        assert any("ended: 0.5 s have passed" in line for line in observing.stderr)
        observing.send_signal(signal.SIGTERM)
        observing.communicate(timeout=PATIENCE_SECONDS)
    assert observing.returncode == 7


def test_run_leaves_the_environment_alone() -> None:
    """It is what the program has without memsampd, whatever that sets for itself."""
    program = (sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")
    alone = subprocess.run(program, capture_output=True, text=True, check=True)
    done = memsampd("run", "--no-listen", "--", *program)
    assert done.returncode == 0
    assert json.loads(done.stdout) == json.loads(alone.stdout)


# All but the one that reads the directory.
DESCRIPTORS = """
import json, os
found = {}
for number in sorted(os.listdir("/proc/self/fd")):
    try: found[number] = os.readlink("/proc/self/fd/" + number)
    except FileNotFoundError: pass
print(json.dumps(found))
"""


@pytest.mark.parametrize("way", ["run", "trace"])
def test_run_gives_the_descriptors_that_it_was_given_and_no_others(
    way: str, tmp_path: Path
) -> None:
    """Of make's jobserver, of flock, of the shell's <(command)."""
    outputs = ("--events", tmp_path / "events", "--store", tmp_path / "store")
    options = ("--listen", f"127.0.0.1:{free_port()}", *outputs) if way == "run" else ()
    program = (sys.executable, "-c", DESCRIPTORS)
    under = (MEMSAMPD, way, "-o", tmp_path / "x", *options, "--", *program)
    reading, writing = os.pipe()
    with open(reading), open(writing, "w"), (tmp_path / "locked").open("w") as locked:
        told = [
            subprocess.run(
                [str(word) for word in command],
                pass_fds=[reading, writing, locked.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=True,
            ).stdout
            for command in (program, under)
        ]
    alone, found = (json.loads(each) for each in told)
    assert found.pop("1").startswith("pipe:")
    assert alone.pop("1").startswith("pipe:")
    assert found == alone
    assert str(writing) in found


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_run_needs_no_streams(closed: str, tmp_path: Path) -> None:
    """What a shell that closed them starts has none."""
    program = ["sh", "-c", "echo ran > told; exit 5"]
    command = [MEMSAMPD, "run", "--no-listen", "--", *program]
    words = f"exec {shlex.join(map(str, command))} {closed}"
    assert subprocess.run(words, shell=True, cwd=tmp_path, check=False).returncode == 5
    assert (tmp_path / "told").read_text() == "ran\n"


def test_run_leaves_the_output_alone(tmp_path: Path) -> None:
    words = (sys.executable, "-c", TWO_PHASES, "2")
    done = memsampd("run", "--no-listen", "-o", str(tmp_path / "r"), "--", *words)
    assert (done.returncode, done.stdout) == (0, "finished\n")


@contextmanager
def zombie() -> Iterator[str]:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    yield str(child)
    os.waitpid(child, 0)


@contextmanager
def kernel_thread() -> Iterator[str]:
    comm = Path("/proc/2/comm")
    if not comm.exists() or comm.read_text() != "kthreadd\n":
        pytest.skip("no kernel threads in this PID namespace")
    yield "2"


BAD_PIDS: dict[str, tuple[Callable[[], AbstractContextManager[str]], str, int]] = {
    "no such process": (lambda: nullcontext("4194000"), "there is no process", 1),
    "not a number": (lambda: nullcontext("xz"), "is no process id", 2),
    "zombie": (zombie, "is a zombie", 1),
    "kernel thread": (kernel_thread, "kernel thread", 1),
}


@pytest.mark.parametrize("case", BAD_PIDS)
def test_bad_targets_get_one_line(case: str) -> None:
    make, words, status = BAD_PIDS[case]
    with make() as pid:
        done = memsampd("attach", pid, "--no-listen")
    assert done.returncode == status
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_an_unwritable_recording_is_refused(target: subprocess.Popen[str]) -> None:
    done = memsampd("attach", str(target.pid), "--no-listen", "-o", "/proc/nowhere/x")
    assert done.returncode == 1
    assert "cannot write /proc/nowhere/x" in done.stderr
    assert "Traceback" not in done.stderr
    assert tracees.children(target.pid) == []


def test_a_port_in_use_is_refused(target: subprocess.Popen[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = memsampd("attach", str(target.pid), "--listen", address)
    assert done.returncode == 1
    assert address in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_cpus_that_are_not_there_are_a_usage_error(target: subprocess.Popen[str]) -> None:
    done = memsampd("attach", str(target.pid), "--no-listen", "--cpu-affinity", "1000")
    assert done.returncode == 2
    assert "there are no such CPUs" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--budget", "0"),
        ("--window", "0"),
        ("--duration", "-1"),
        ("--schedule", "x"),
        ("--max-stop", "-1"),
        ("--nice", "-5"),
        ("--cpu-affinity", "x"),
        ("--cpu-affinity", ""),
    ],
)
def test_bad_options_are_usage_errors(options: tuple[str, ...]) -> None:
    done = memsampd("attach", "1", "--no-listen", *options)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
