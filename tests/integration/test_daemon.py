"""The daemon, end to end: real processes, the real command line, and what goes wrong."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from commands import MEMSAMPD, free_port, memsampd
from daemons import GENEROUS, Daemon, daemon, rule
from tracees import BUSY, compile_c, descriptors, running, sleeping, traced, wait_until_clean
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.daemon.node.control_client import ControlClient
from memsampd.daemon.node.protocol import RefusedError
from memsampd.errors import MemsampdError
from memsampd.sampler.process.identity import read_stat
from memsampd.sampler.process.status import list_threads

NOBODY = 65534
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
SLEEPY = """
import time
while True:
    stop = time.thread_time() + 0.2
    while time.thread_time() < stop: {i: str(i) for i in range(2000)}
    time.sleep(2.2)
"""
# Keeps so many children at work; each lives for a while. Told to end, it leaves none.
FORKING = """
import os, signal, sys, time
children = set()
def end(*_):
    for each in children: os.kill(each, signal.SIGKILL)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
while True:
    while len(children) < int(sys.argv[1]):
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            stop = time.monotonic() + float(sys.argv[2])
            while time.monotonic() < stop: {i: str(i) for i in range(2000)}
            os._exit(0)
        children.add(pid)
    children.discard(os.wait()[0])
"""
EXECING = """
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words)
{
    long round = atol(words[1]);
    volatile char *area = calloc(1 << 20, 1);
    for (long i = 0; i < 40; i++)
        for (long at = 0; at < 1 << 20; at += 64) area[at]++;
    char next[20];
    snprintf(next, sizeof next, "%ld", round + 1);
    execl(words[0], words[0], next, words[2], NULL);
    return 1;
}
"""


def is_unharmed(process: subprocess.Popen[str]) -> bool:
    """Whether it lives, and soon nobody traces it, nor has it stopped."""
    return process.poll() is None and wait_until_clean(process.pid) == []


def others_niceness(pid: int) -> list[int]:
    """Of all threads of a process but the first."""
    found = []
    for tid in set(list_threads(pid)) - {pid}:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            found.append(os.getpriority(os.PRIO_PROCESS, tid))
    return found


def test_a_rule_finds_a_process_and_its_curve_comes(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    with daemon(tmp_path / "d", rule(mark)) as running_daemon:
        found = running_daemon.wait_for(
            lambda targets: (
                (each := targets.get(busy.pid))
                and each.get("bursts")
                and each["state"] in ("profiled", "sampled")  # not idle, as where it gets no CPU
                and each
            )
        )
        assert found["rule"] == "marked"
        assert found["caches"]
        own, pid = os.getpriority(os.PRIO_PROCESS, 0), running_daemon.process.pid
        assert os.getpriority(os.PRIO_PROCESS, pid) == max(own, 5)
        # Whoever stops a target is not to wait; who writes to the disk, the store's thread, may,
        # and who measures what a switch costs, for a moment.
        wait_for(
            lambda: [each != own for each in others_niceness(pid)].count(True) <= 1,
            lambda: f"one that is not {own} among {others_niceness(pid)}",
        )
        listed = memsampd("list", "--socket", running_daemon.socket)
        assert listed.returncode == 0, listed.stderr
        assert f"{busy.pid}" in listed.stdout
        assert running_daemon.stop() == 0
    assert is_unharmed(busy)
    assert not running_daemon.socket.exists()


def test_users_ask_for_processes_and_let_them_go(tmp_path: Path) -> None:
    with sleeping() as idle, daemon(tmp_path / "d") as running_daemon:
        options = ("--socket", str(running_daemon.socket))
        attached = memsampd("attach", "--daemon", str(idle.pid), *options)
        assert attached.returncode == 0, attached.stderr
        assert "is observed now" in attached.stdout
        again = memsampd("attach", "--daemon", str(idle.pid), *options)
        assert "is observed already" in again.stdout
        running_daemon.wait_for(lambda targets: targets[idle.pid]["state"] == "idle")
        let_go = memsampd("detach", str(idle.pid), *options)
        assert let_go.returncode == 0, let_go.stderr
        assert running_daemon.targets() == {}
        unknown = memsampd("detach", str(idle.pid), *options)
        assert unknown.returncode == 1
        assert "is not observed; memsampd list" in unknown.stderr
        for unheard in (("--budget", "0.01"), ("--js",), ("-o", "x.mem")):
            refused = memsampd("attach", "--daemon", str(idle.pid), *options, *unheard)
            assert refused.returncode == 2
            assert "observes as its configuration says, without --" in refused.stderr
        alone = memsampd("attach", str(idle.pid), *options)
        assert alone.returncode == 2
        assert "add --daemon" in alone.stderr
        assert running_daemon.targets() == {}
        nobody = memsampd("attach", "--daemon", "4194303", *options)
        assert nobody.returncode == 1
        assert "there is no process 4194303" in nobody.stderr


def test_accesses_come_from_elsewhere_while_a_process_is_observed(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    """By the command line: what was asked for goes before what the file says."""

    def ask(*options: str) -> subprocess.CompletedProcess[str]:
        where = ("--socket", str(running_daemon.socket))
        return memsampd("attach", "--daemon", str(busy.pid), *where, *options)

    def seen(source: str, more_than: int) -> dict[str, Any]:
        """What is known, once bursts have come of a source."""
        return running_daemon.wait_for(  # type: ignore[no-any-return]
            lambda targets: (
                (each := targets.get(busy.pid))
                and each.get("backend", {}).get("accesses") == source
                and each["bursts"] > more_than
                and each
            )
        )

    with daemon(tmp_path / "d", GENEROUS + rule(mark)) as running_daemon:
        first = seen("replica", 0)
        changed = ask("--accesses", "watchpoints")
        assert changed.returncode == 0, changed.stderr
        assert "accesses: watchpoints" in changed.stdout
        second = seen("watchpoints", first["bursts"])
        assert second["windows"] >= first["windows"]
        assert second["target"] == first["target"]
        config = tmp_path / "d" / "config.toml"
        config.write_text(f"{config.read_text()}[rules.session]\naccesses = 'bursts'\n")
        running_daemon.ask("reload")
        seen("watchpoints", second["bursts"])  # as was asked for
        refused = ask("--accesses", "nonsense")
        assert refused.returncode == 2
        assert ask("--accesses", "auto").returncode == 0
        third = seen("replica", second["bursts"])
        assert ask().returncode == 0
        assert third["windows"] >= second["windows"]
        assert "accesses by watchpoints from now on" in running_daemon.log
    assert is_unharmed(busy)


def test_a_file_read_again_changes_where_accesses_come_from(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    def source(targets: dict[int, dict[str, Any]]) -> str:
        return str(targets.get(busy.pid, {}).get("backend", {}).get("accesses"))

    with daemon(tmp_path / "d", rule(mark)) as running_daemon:
        running_daemon.wait_for(lambda targets: source(targets) == "replica")
        windows = running_daemon.targets()[busy.pid]["windows"]
        config = tmp_path / "d" / "config.toml"
        text = config.read_text()
        config.write_text(f"{text}[rules.session]\naccesses = 'watchpoints'\n")
        running_daemon.process.send_signal(signal.SIGHUP)
        running_daemon.wait_for(lambda targets: source(targets) == "watchpoints")
        running_daemon.wait_for(lambda targets: "by watchpoints" in targets[busy.pid]["reason"])
        assert running_daemon.targets()[busy.pid]["windows"] >= windows
        # What cannot be had leaves all as it is, with the reason.
        config.write_text(f"{text}[rules.session]\naccesses = 'bursts'\nmax_stop = 0\n")
        running_daemon.process.send_signal(signal.SIGHUP)
        wait_for(lambda: running_daemon.ask("status")["status"]["reload_trouble"])
        assert source(running_daemon.targets()) == "watchpoints"
        config.write_text(text)
        running_daemon.process.send_signal(signal.SIGHUP)
        running_daemon.wait_for(lambda targets: source(targets) == "replica")
    assert is_unharmed(busy)


def test_what_was_asked_for_outlives_the_daemon(tmp_path: Path) -> None:
    with running(sys.executable, "-c", BUSY) as process:
        for options in ({"accesses": "watchpoints"}, None):
            with daemon(tmp_path / "d") as running_daemon:
                if options:
                    running_daemon.ask("attach", pid=process.pid, **options)
                found = running_daemon.wait_for(
                    lambda targets: targets.get(process.pid, {}).get("backend")
                )
                assert found["accesses"] == "watchpoints"
                running_daemon.stop()


def test_a_configuration_is_checked_and_says_what_it_would_observe(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    path = tmp_path / "config.toml"
    others = (
        '[[rules]]\nname = "none"\ncommand = "no such program"\n'
        '[[rules]]\nname = "busy"\nleast_cpu = 0.2\n'
    )
    path.write_text(rule(mark) + others)
    command = [MEMSAMPD, "check-config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"({busy.pid})" in done.stdout
    assert "rule none: matches no process now" in done.stdout
    assert "of which it has those that use 20% of a CPU, now" in done.stdout
    path.write_text(rule(mark).replace("command_line", "comand_line"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no such key; did you mean command_line?" in done.stderr


@pytest.mark.parametrize("command", ["list", "status"])
def test_without_a_daemon_it_is_said_how_to_start_one(command: str, tmp_path: Path) -> None:
    done = memsampd(command, "--socket", tmp_path / "none.sock")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no daemon serves" in done.stderr
    assert "systemctl start memsampd, or memsampd daemon" in done.stderr


@pytest.mark.parametrize("address", ["", "127.0.0.1:{port}"])
def test_a_second_daemon_refuses_with_a_reason(tmp_path: Path, address: str) -> None:
    """The first one, and not its address, is what is in the way."""
    listen = address.format(port=free_port())
    with daemon(tmp_path / "d", options=("--listen", listen)) as first:
        second = memsampd("daemon", "--socket", first.socket, "--listen", listen, "--duration", "1")
        assert second.returncode == 1
        assert f"a daemon (process {first.process.pid}) serves" in second.stderr
        assert first.ask("status")["ok"]


def test_a_killed_daemon_leaves_targets_unharmed_and_the_next_one_takes_over(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    with sleeping() as idle:
        with daemon(tmp_path / "d", rule(mark)) as first:
            first.ask("attach", pid=idle.pid)
            first.wait_for(lambda targets: targets.get(busy.pid, {}).get("bursts"))
            first.process.kill()
            first.process.wait()
        assert is_unharmed(busy)
        before = read_stat(busy.pid).user_ticks
        wait_for(lambda: read_stat(busy.pid).user_ticks > before)
        assert is_unharmed(idle)
        with daemon(tmp_path / "d", rule(mark)) as second:
            second.wait_for(lambda targets: {busy.pid, idle.pid} <= set(targets))
            assert second.targets()[idle.pid]["rule"] == "user"


def test_a_target_that_is_killed_is_forgotten_and_the_rest_go_on(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    with (
        running(sys.executable, "-c", BUSY, mark) as other,
        daemon(tmp_path / "d", rule(mark)) as running_daemon,
    ):
        running_daemon.wait_for(lambda targets: {busy.pid, other.pid} <= set(targets))
        other.kill()
        other.wait()
        running_daemon.wait_for(lambda targets: set(targets) == {busy.pid})
        assert running_daemon.ask("status")["status"]["ended_targets"] >= 1


def test_children_are_targets_of_their_own_and_come_and_go(tmp_path: Path, mark: str) -> None:
    with running(sys.executable, "-c", FORKING, "3", "1", mark) as parent:
        try:
            with daemon(tmp_path / "d", rule("FORKING", "follow_children = true")) as none:
                assert none.targets() == {}
            seen: set[int] = set()
            config = GENEROUS + rule(f" {mark}$", "follow_children = true")
            with daemon(tmp_path / "d", config) as running_daemon:

                def have_enough_come(targets: dict[int, Any]) -> bool:
                    seen.update(targets)
                    return len(seen) >= 8

                running_daemon.wait_for(have_enough_come)
                status = running_daemon.ask("status")["status"]
                assert status["open_descriptors"] < 50 + 25 * (os.cpu_count() or 1)
                assert parent.pid in seen
            assert parent.poll() is None
        finally:
            parent.terminate()
            parent.wait()


def test_a_program_that_becomes_another_all_the_time_stays_one_target(
    tmp_path: Path, mark: str
) -> None:
    program = compile_c(tmp_path, EXECING)
    with running(program, "0", mark) as target:
        with daemon(tmp_path / "d", rule(mark)) as running_daemon:
            running_daemon.wait_for(
                lambda targets: targets.get(target.pid, {}).get("cost", {}).get("samples")
            )
            before = _round(target.pid)
            wait_for(lambda: _round(target.pid) > before + 5)
            assert set(running_daemon.targets()) == {target.pid}
        assert is_unharmed(target)


def _round(pid: int) -> int:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def test_one_that_cannot_be_attached_to_is_listed_with_its_reason_and_tried_again(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    with traced(busy.pid) as tracer, daemon(tmp_path / "d", rule(mark)) as running_daemon:
        found = running_daemon.wait_for(
            lambda targets: (each := targets.get(busy.pid)) and each["reason"] and each
        )
        assert found["state"] == "failed"
        assert "is traced by" in found["reason"]
        assert "detach or end that tracer" in found["remedy"]
        tracer.kill()
        tracer.wait()
        running_daemon.wait_for(lambda targets: targets[busy.pid]["state"] != "failed")


def test_a_hang_up_has_the_rules_read_again_and_sessions_go_on(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    seconds = f"1{os.getpid()}"  # as nobody else sleeps
    with running("sleep", seconds) as idle, daemon(tmp_path / "d", rule(mark)) as running_daemon:
        running_daemon.wait_for(lambda targets: targets.get(busy.pid, {}).get("windows"))
        config = tmp_path / "d" / "config.toml"
        text = config.read_text()
        config.write_text(text + "[[rules]]\nname = 'broken'\n")
        running_daemon.process.send_signal(signal.SIGHUP)
        wait_for(lambda: running_daemon.ask("status")["status"]["reload_trouble"])
        assert "line " in running_daemon.ask("status")["status"]["reload_trouble"]
        windows = running_daemon.targets()[busy.pid]["windows"]
        config.write_text(text + f"[[rules]]\nname = 'idle'\ncommand_line = '^sleep {seconds}$'\n")
        running_daemon.ask("reload")
        running_daemon.wait_for(lambda targets: idle.pid in targets)
        assert running_daemon.ask("status")["status"]["reload_trouble"] == ""
        assert running_daemon.targets()[busy.pid]["windows"] >= windows
        config.write_text('listen = ""\n')
        running_daemon.process.send_signal(signal.SIGHUP)
        running_daemon.wait_for(lambda targets: not targets)
        assert is_unharmed(busy)


def test_metrics_of_all_targets_are_served_at_one_address(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    options = ("--listen", listen)
    with daemon(tmp_path / "d", GENEROUS + rule(mark), options=options) as running_daemon:

        def metrics() -> str:
            with urllib.request.urlopen(f"http://{listen}/metrics") as answer:
                text: str = answer.read().decode()
                return text

        wait_for(lambda: "memsampd_misses_total{" in metrics())
        assert f'pid="{busy.pid}",policy="lru"' in metrics()
        assert 'policy="random"' not in metrics()  # nobody asked for it
        running_daemon.ask("detach", pid=busy.pid)
        wait_for(lambda: f'pid="{busy.pid}"' not in metrics())


def test_who_is_let_go_of_is_not_said_to_have_ended(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    options = ("--listen", listen)
    with (
        running(sys.executable, "-c", BUSY, mark) as other,
        daemon(tmp_path / "d", GENEROUS + rule(mark), options=options) as running_daemon,
    ):

        def told(is_attached: bool) -> dict[int, bool] | None:
            """Whether they are alive, once it is told of both."""
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://{listen}/api/v1/targets") as answer,
            ):
                found = [
                    each for each in json.load(answer)["targets"] if each["attached"] is is_attached
                ]
                alive = {each["pid"]: each["alive"] for each in found}
                return alive if len(alive) == 2 else None
            return None

        wait_for(lambda: told(True))
        running_daemon.ask("detach", pid=busy.pid)
        other.kill()
        assert wait_for(lambda: told(False)) == {busy.pid: True, other.pid: False}


def test_targets_take_turns_where_there_are_more_than_slots(tmp_path: Path, mark: str) -> None:
    config = f"[budget]\nprofiled_targets = 1\nturn_seconds = 2\ntargets = 2\n{rule(mark)}"
    with (
        running(sys.executable, "-c", BUSY, mark),
        running(sys.executable, "-c", BUSY, mark),
        running(sys.executable, "-c", BUSY, mark),
        daemon(tmp_path / "d", config) as running_daemon,
    ):
        found = running_daemon.wait_for(
            lambda targets: (
                sorted(each["state"] for each in targets.values()) == ["profiled", "sampled"]
                and targets
            )
        )
        (waiting,) = (each for each in found.values() if each["state"] == "sampled")
        assert waiting["reason"]
        assert running_daemon.ask("status")["status"]["left_out"] == 1
        pid = waiting["pid"]
        running_daemon.wait_for(lambda targets: targets[pid]["state"] == "profiled")


def test_targets_that_mostly_sleep_have_bursts_too(tmp_path: Path, mark: str) -> None:
    config = f"[budget]\nown_cpu = 0.2\nprofiled_targets = 1\nturn_seconds = 2.5\n{rule(mark)}"
    with (
        running(sys.executable, "-c", SLEEPY, mark) as one,
        running(sys.executable, "-c", SLEEPY, mark) as other,
        daemon(tmp_path / "d", config) as running_daemon,
    ):
        seen: set[int] = set()

        def have_both_had_one(targets: dict[int, Any]) -> bool:
            seen.update(pid for pid, each in targets.items() if each.get("bursts"))
            return seen == {one.pid, other.pid}

        running_daemon.wait_for(have_both_had_one)
        assert is_unharmed(one)
        assert is_unharmed(other)


def test_a_read_only_state_directory_is_said_and_nothing_else_stops(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "state").write_text("a file, not a directory")
    with daemon(tmp_path / "d", rule(mark)) as running_daemon:
        running_daemon.wait_for(lambda targets: busy.pid in targets)
        with sleeping() as idle:
            running_daemon.ask("attach", pid=idle.pid)
            assert idle.pid in running_daemon.targets()
        assert "are forgotten at a restart" in running_daemon.log
        assert running_daemon.stop() == 0


@is_root
def test_users_see_and_ask_for_their_own_processes_only(
    tmp_path: Path, busy: subprocess.Popen[str]
) -> None:
    shared = Path("/tmp") / f"memsampd-test-{os.getpid()}"
    shared.mkdir(mode=0o755)
    try:
        with (
            sleeping(user=NOBODY, group=NOBODY) as theirs,
            daemon(shared / "d") as running_daemon,
        ):
            (shared / "d").chmod(0o755)
            running_daemon.ask("attach", pid=busy.pid)
            told = _as_nobody(running_daemon, theirs.pid, busy.pid)
            assert told == [
                f"attach {busy.pid}: process {busy.pid} is not yours",
                f"detach {busy.pid}: process {busy.pid} is not observed",
                "attach 1: process 1 is not yours",
                f"attach {theirs.pid}: done",
                f"list: {theirs.pid}",
                f"status: {theirs.pid}",
                "reload: only root, or the daemon's own user, may reload",
                f"detach {theirs.pid}: done",
            ]
            assert set(running_daemon.targets()) == {busy.pid}
    finally:
        shutil.rmtree(shared)


def _as_nobody(running_daemon: Daemon, own: int, other: int) -> list[str]:
    """What an unprivileged user is told: this process, for a while."""
    told = []

    def ask(command: str, pid: int | None = None) -> None:
        words = command if pid is None else f"{command} {pid}"
        try:
            answer = running_daemon.ask(command, **({} if pid is None else {"pid": pid}))
        except RefusedError as error:
            told.append(f"{words}: {error.cause}")
        else:
            targets = answer.get("targets") or answer.get("status", {}).get("targets") or ()
            pids = [str(each.get("pid") or each["target"]["pid"]) for each in targets]
            told.append(f"{words}: {' '.join(pids) or 'done'}")

    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        ask("attach", other)
        ask("detach", other)
        ask("attach", 1)
        ask("attach", own)
        ask("list")
        ask("status")
        ask("reload")
        ask("detach", own)
    finally:
        os.seteuid(0)
        os.setegid(0)
    return told


def test_systemd_is_told(tmp_path: Path) -> None:
    address = tmp_path / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE_SECONDS)
        environ = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "4000000"}
        with daemon(tmp_path / "d", environ=environ) as running_daemon:
            assert manager.recv(4096) == b"READY=1"
            assert manager.recv(4096).startswith(b"WATCHDOG=1\nSTATUS=0 targets")
            running_daemon.process.send_signal(signal.SIGHUP)
            told = [b""]
            while not told[-1].startswith(b"READY=1"):
                told.append(manager.recv(4096))
            assert any(each.startswith(b"RELOADING=1\nMONOTONIC_USEC=") for each in told)
            assert running_daemon.stop() == 0
            while not told[-1].startswith(b"STOPPING=1"):
                told.append(manager.recv(4096))


def test_the_watchdog_is_told_though_no_descriptor_is_left(tmp_path: Path) -> None:
    address = tmp_path / "notify.sock"
    few = ("sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE_SECONDS)
        environ = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "4000000"}
        with daemon(tmp_path / "d", before=few, environ=environ) as running_daemon:
            pid = running_daemon.process.pid
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            assert limits[0] == limits[1]  # as far as it goes
            few_files, told = 4096, 0
            while told < 4:  # one may have been on its way, another one waits
                open_now = {int(each) for each in os.listdir(f"/proc/{pid}/fd")}
                if free := set(range(few_files)) - open_now:
                    few_files, told = min(free), 0
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few_files, limits[1]))
                told += manager.recv(4096).startswith(b"WATCHDOG=1\nSTATUS=0 targets")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            assert running_daemon.ask("status")["status"]["open_descriptors"] >= few_files
            assert "telling the node's state" not in running_daemon.log


def test_garbage_and_slow_clients_hurt_nobody(tmp_path: Path) -> None:
    with daemon(tmp_path / "d") as running_daemon:
        clients = []
        for sent in (b"", b"{", b"\0" * 5000, b"[" * 16000, b"x" * 100_000, b"\n" * 3000):
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(running_daemon.socket))
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.send(sent)
            clients.append(client)
        assert running_daemon.ask("status")["ok"]
        more = []
        for _ in range(100):
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(running_daemon.socket))
            more.append(client)
        for client in clients + more:
            client.close()
        wait_for(lambda: _asked(running_daemon))
        wait_for(lambda: running_daemon.ask("status")["status"]["open_descriptors"] < 30)
        assert running_daemon.process.poll() is None


def _asked(running_daemon: Daemon) -> bool:
    try:
        return bool(running_daemon.ask("status")["ok"])
    except MemsampdError:
        return False


def test_many_attaches_and_detaches_leave_nothing(tmp_path: Path) -> None:
    with sleeping() as idle, daemon(tmp_path / "d") as running_daemon:

        def cycle(times: int) -> dict[str, int]:
            with ControlClient(running_daemon.socket, PATIENCE_SECONDS) as client:
                for _ in range(times):
                    client.ask("attach", pid=idle.pid)
                    client.ask("detach", pid=idle.pid)
                status = client.ask("status")["status"]
            return {name: status[name] for name in ("open_descriptors", "threads", "rss_bytes")}

        # By then what each kind of work loads, and what threads' heaps keep, is there.
        first, last = cycle(60), cycle(200)
        assert last["rss_bytes"] < first["rss_bytes"] + (8 << 20)
        wait_for(lambda: cycle(0)["open_descriptors"] <= first["open_descriptors"])
        wait_for(lambda: cycle(0)["threads"] <= first["threads"])
        assert is_unharmed(idle)


def test_a_stopped_daemon_leaves_no_descriptor_in_its_client(tmp_path: Path) -> None:
    before = descriptors()
    with daemon(tmp_path / "d") as running_daemon:
        for _ in range(5):
            running_daemon.ask("list")
        assert running_daemon.stop() == 0
    assert descriptors() == before
