"""The newcomer's path of docs/prometheus.md: a program is watched, drawn, and an alert fires."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

import pytest
from commands import MEMSAMPD, free_port
from daemons import GENEROUS
from monitored import RATE_INTERVAL, Monitoring, monitoring
from needed import tool
from promql import ROOT, filled_in, panel_queries, variable_queries
from tracees import compile_c, running
from waiting import wait_for

from memsampd.machines.machine import read_machine

KEPT = ROOT / "prometheus"
BANDWIDTH = "MemsampdPhaseBandwidthBound"
COMMAND = "calm-then-bound"  # no other test has a program of this name
CONFIG = f"""
publish_seconds = 0.5
{GENEROUS}
[[rules]]
name = "the program"
command = "{COMMAND}"
"""
# More than the caches of this machine hold: a host's L3 is shown to a small virtual machine whole.
LARGE_BYTES = 2 * max(128 << 20, *read_machine().cache_sizes_bytes().values())
# Stays in 4 KiB until it is told; then goes through so much, with a table of 64 KiB beside it.
CALM_THEN_BOUND = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
enum { SMALL = 1 << 13, LARGE = LARGE_BYTES / sizeof(long) };
static volatile sig_atomic_t told;
static void tell(int number) { told = 1; }
int main(void)
{
    volatile long *large = calloc(LARGE, sizeof(long)), *small = calloc(SMALL, sizeof(long));
    for (long at = 0; at < LARGE; at++) large[at] = at;
    signal(SIGUSR1, tell);
    puts("ready");
    fflush(stdout);
    while (!told)
        for (long at = 0; at < 512; at++) large[at] = large[at] * 3 + 1;
    for (;;)
        for (long at = 0; at < LARGE; at++) large[at] += small[at * 7919 % SMALL];
}
"""


@pytest.fixture(scope="module", autouse=True)
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Monitoring]]:
    """For each test that needs one, by name: they take their time to begin, all at once."""
    shipped = tmp_path_factory.mktemp("shipped")
    subprocess.run([MEMSAMPD, "dashboards", "--out", str(shipped)], check=True)
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                monitoring(shipped / "prometheus", tmp_path_factory.mktemp(name))
            )
            for name in ("attach", "daemon", "absent")
        }


@pytest.mark.parametrize("name", sorted(each.name for each in KEPT.glob("memsampd*.test.yml")))
def test_rules_fire_when_they_should_and_not_else(name: str) -> None:
    check("test", "rules", str(KEPT / name))


def test_promtool_takes_rules_and_configurations() -> None:
    check("check", "rules", *map(str, sorted(KEPT.glob("memsampd*.[ar]*.yml"))))
    for name in ("prometheus.yml", "fleet.yml", "federation.yml"):
        check("check", "config", str(KEPT / name))


def path_commands() -> list[list[str]]:
    """Words of the commands of the newcomer's path."""
    text = (ROOT / "docs/prometheus.md").read_text()
    path = text[text.index("## A newcomer's path") : text.index("## Alerts")]
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", path, re.M | re.S)
    lines = (line for kind, block in blocks if not kind for line in block.splitlines())
    return [line.split() for line in lines if line.strip()]


def test_files_and_programs_of_the_path_are_there(tmp_path: Path) -> None:
    """What the path does with them is done with a real program below."""
    configs = []
    for program, *words in path_commands():
        if program == "memsampd" and words[0] == "dashboards":
            subprocess.run([MEMSAMPD, *words], cwd=tmp_path, check=True)
        elif program != "memsampd":
            tool(program, "whose name it has")
        configs += [
            (program, str(tmp_path / word.partition("=")[2]))
            for word in words
            if word.startswith("--config.file=")
        ]
    assert [program for program, _ in configs] == ["prometheus", "prometheus-alertmanager"]
    check("check", "config", configs[0][1])
    check("check-config", configs[1][1], program="amtool")
    for name in ("prometheus", "prometheus-alertmanager"):
        (words,) = (words for words in path_commands() if words[0] == name)
        starts_here(words, tmp_path)
    boards = sorted((tmp_path / "monitoring/grafana").glob("*.json"))
    assert [json.loads(board.read_text())["title"] for board in boards]


def starts_here(words: list[str], directory: Path) -> None:
    """A server starts, at a port of ours, and keeps its data in the directory."""
    (kept,) = (word.partition("=")[2] for word in words if word.startswith("--storage."))
    address = f"127.0.0.1:{free_port()}"

    def is_ready() -> bool:
        with suppress(OSError), urlopen(f"http://{address}/-/ready") as answer:
            return bool(answer.status == HTTPStatus.OK)
        return False

    with running(*words, f"--web.listen-address={address}", cwd=directory) as server:
        wait_for(lambda: is_ready() or server.poll() is not None, lambda: words[0])
        assert server.poll() is None
        assert (directory / kept).is_dir()


def check(*words: str, program: str = "promtool") -> None:
    command = [tool(program, "prometheus"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def slow_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of this machine, measured; then we pretend that its memory is slow.

    By how much a peak measured on a busy machine is too low, and rates modelled there are wrong,
    is not known; the program is to be bound by memory, and the other loop not, in any case.
    """
    directory = tmp_path_factory.mktemp("measured")
    environment = {**os.environ, "XDG_STATE_HOME": str(directory)}
    words = ["machine", "--measure", "--even-if-busy", "--seconds", "0.6", "--json"]
    done = subprocess.run([MEMSAMPD, *words], env=environment, check=True, capture_output=True)
    measured = json.loads(done.stdout)["measured"]
    path = directory / "memsampd/machine.json"
    content = json.loads(path.read_text())
    assert content["bandwidths"] == measured["bandwidths"]
    for bandwidth in content["bandwidths"]:
        bandwidth["bytes_per_second"] /= 20
    content["allowed_cpus"] = None  # wherever tests run
    path.write_text(json.dumps(content))
    return path


@contextmanager
def observing(how: str, pid: int, directory: Path, port: int) -> Iterator[None]:
    """memsampd observes a process, by itself or by the daemon, and tells metrics at a port."""
    listen = ("--listen", f"127.0.0.1:{port}")
    config = directory / "config.toml"
    config.write_text(CONFIG)
    words = {
        "attach": ("attach", pid, "--own-cpu", 0.5, "--budget", 0.1, *listen),
        "daemon": (
            *("daemon", "--config", config, "--socket", directory / "socket"),
            *("--state-dir", directory / "store", *listen),
        ),
    }[how]
    environment = {**os.environ, "XDG_STATE_HOME": str(directory)}
    with (directory / "memsampd.log").open("w") as out:
        command = [MEMSAMPD, *map(str, words)]
        with subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
            try:
                yield
            finally:
                process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("how", ["attach", "daemon"])
def test_a_program_turns_bandwidth_bound(
    how: str, monitored: dict[str, Monitoring], slow_machine: Path, tmp_path: Path
) -> None:
    monitors = monitored[how]
    (tmp_path / "memsampd").mkdir()
    shutil.copy(slow_machine, tmp_path / "memsampd")
    compiled = compile_c(tmp_path, CALM_THEN_BOUND, f"-DLARGE_BYTES={LARGE_BYTES}l")
    with running(compiled.rename(tmp_path / COMMAND)) as program:
        assert program.stdout is not None
        program.stdout.readline()
        with observing(how, program.pid, tmp_path, monitors.scraped):
            monitors.wait_for("memsampd_phase_memory_peak_ratio")
            assert BANDWIDTH not in monitors.alerts()
            program.send_signal(signal.SIGUSR1)
            labels = monitors.wait_for_alert(BANDWIDTH)
            assert (labels["pid"], labels["command"]) == (str(program.pid), COMMAND)
            for name in ("memsampd-machines.json", "memsampd-process.json"):
                answers_all(monitors, name, program.pid, with_node=how == "daemon")


def answers_all(monitors: Monitoring, name: str, pid: int, *, with_node: bool) -> None:
    """Every query of a dashboard, and every choice, has an answer."""
    values = {
        "$__rate_interval": RATE_INTERVAL,
        "$node": ".+",
        "$command": COMMAND,
        "$pid": str(pid),
        "$policy": "lru",
        "$phase": ".+",
    }
    for _, selector, label in variable_queries(name):
        assert monitors.label_values(filled_in(selector, values), label)
    for _, expression in panel_queries(name):
        if with_node or "memsampd_node_" not in expression:
            monitors.wait_for_figures(filled_in(expression, values))


def test_an_absent_memsampd_is_told(monitored: dict[str, Monitoring]) -> None:
    labels = monitored["absent"].wait_for_alert("MemsampdDown")
    assert labels["job"] == "memsampd"
