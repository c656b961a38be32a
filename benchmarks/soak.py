"""The daemon with many targets for a long time: what it takes, and whether it is right.

usage: python benchmarks/soak.py [--quick] [--json FILE] [--markdown FILE] [--targets N]
                                [--minutes M] [--cycles N]

Targets of several kinds, all found by one rule: programs that go round in 16 KiB, 256 KiB or 2 MiB
(whose curves are known: all misses below that size, none above), idle ones, some that end and are
started again, some that fork and some that exec all the time. Measured every 15 seconds, as
Prometheus does: resident memory, own CPU time, holds, descriptors, the time of a scrape. At the end
all are let go, then one idle process is attached to and let go over and over, and a busy one a
hundredth as often, each time until it has had a burst (for ten seconds at most). ``--minutes 0``
does that only, with a budget that allows bursts in each cycle. ``--markdown docs/daemon.md`` writes
the figures there, what they were after 1, 10, 20 and 30 minutes among them. Exit status 1 if a goal
is missed:

- memory of the last tenth at most 1.25 times that after the first third, and 10 MB (judged in runs
  of ten minutes or more: before that, targets still have their first bursts);
- own CPU time at most a tenth of one core, the first minute left out;
- as many descriptors and threads in the end as after a first target came and went;
- cycles leave no descriptor, thread or child process, and 8 MB at most (after a tenth of them), and
  half of those with a busy process have a burst;
- half of the scrapes of 5,000 series or more within 100 ms (of all, if there are none);
- no long-lived target ended, traced or stopped in the end;
- of the long-lived busy targets with a curve, none wrong; at least half have one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memsampd.daemon.node.control_client import ControlClient
from memsampd.errors import MemsampdError
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.status import read_status, read_threads
from reference.documents import replace_section
from soak_figures import figures_of, markdown, missed
from verdict import add_options, finish

MEMSAMPD = str(Path(sys.executable).with_name("memsampd"))
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
static void go_round(volatile char *area, long bytes, double seconds)
{
    struct timespec from, now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    do {
        for (long total = 0; total < 4 << 20; total += bytes)
            for (long at = 0; at < bytes; at += 64) (void)area[at];
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    } while (now.tv_sec - from.tv_sec + 1e-9 * (now.tv_nsec - from.tv_nsec) < seconds);
}
static void rest(double seconds)
{
    struct timespec time = {(long)seconds, (long)((seconds - (long)seconds) * 1e9)};
    nanosleep(&time, NULL);
}
int main(int count, char **words)
{
    const char *kind = words[1];
    long bytes = atol(words[2]);
    double busy = atof(words[3]), idle = atof(words[4]);
    volatile char *area = malloc(bytes);
    memset((void *)area, 1, bytes);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int round = 0;; round++) {
        if (strcmp(kind, "idle")) go_round(area, bytes, busy);
        rest(idle);
        if (!strcmp(kind, "end") && round == 3) return 0;
        if (!strcmp(kind, "exec") && round == 2) execv("/proc/self/exe", words);
        if (!strcmp(kind, "fork")) {
            pid_t child = fork();
            if (!child) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (int i = 0; i < 3; i++) { go_round(area, bytes, busy); rest(idle); }
                _exit(0);
            }
            if (round >= 2) wait(NULL);
        }
    }
}
"""
# Kind and bytes, in turn; those that go on for ever and are known come first.
KINDS = (
    ("walk", 16 << 10),
    ("walk", 256 << 10),
    ("walk", 2 << 20),
    ("idle", 4096),
    ("walk", 16 << 10),
    ("walk", 256 << 10),
    ("end", 16 << 10),
    ("exec", 256 << 10),
    ("idle", 4096),
    ("fork", 16 << 10),
)
SAMPLE_SECONDS = 15.0
LOAD = 1.0  # CPUs that all targets keep busy together
_TOLERANCE = 0.05


@dataclass
class Target:
    """A process under observation, started again when it ends if it is of that kind."""

    kind: str
    size_bytes: int
    command: list[str]
    process: subprocess.Popen[bytes]


def build(directory: Path) -> Path:
    """Compile the targets' program."""
    source, program = directory / "target.c", directory / "soaktarget"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "-w", "-o", str(program), str(source)], check=True)
    return program


@contextmanager
def targets(program: Path, number: int, mark: str) -> Iterator[list[Target]]:
    """Start them; killed at the end."""
    started = []
    busy = sum(kind != "idle" for kind, _ in (KINDS[i % len(KINDS)] for i in range(number)))
    share = min(LOAD / max(busy, 1), 0.9)
    try:
        for i in range(number):
            kind, size = KINDS[i % len(KINDS)]
            work = 0.3
            rest = work * (1 / share - 1) if kind != "idle" else 3600.0
            command = [str(program), kind, str(size), str(work), f"{rest:.4f}", mark]
            started.append(Target(kind, size, command, subprocess.Popen(command)))
        yield started
    finally:
        for each in started:
            each.process.kill()
        for each in started:
            each.process.wait()


@contextmanager
def daemon(
    directory: Path, mark: str, port: int, budget: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Start it with one rule; ended at the end."""
    (directory / "config.toml").write_text(
        f'listen = "127.0.0.1:{port}"\nscan_seconds = 2.0\n[[rules]]\nname = "soak"\n'
        f'command_line = "{mark}"\nfollow_children = true\nlargest_number = 200\n{budget}'
    )
    command = [MEMSAMPD, "daemon", "--config", str(directory / "config.toml")]
    command += ["--socket", str(directory / "s"), "--state-dir", str(directory / "state")]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()


def ask(directory: Path, command: str, **fields: Any) -> dict[str, Any]:
    """Ask the daemon, as long as it takes for it to be there."""
    give_up = time.monotonic() + 60
    while True:
        try:
            with ControlClient(directory / "s", 60) as client:
                return client.ask(command, **fields)
        except MemsampdError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)


def scrape(port: int) -> tuple[float, str]:
    """Seconds that a scrape takes, and what it says."""
    started = time.monotonic()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return time.monotonic() - started, text


def replicas_rss(pid: int) -> int:
    """Resident memory of all its child processes, bytes."""
    done = subprocess.run(
        ["ps", "--ppid", str(pid), "-o", "rss="], capture_output=True, text=True, check=False
    )
    return 1024 * sum(map(int, done.stdout.split()))


def web_cpu_seconds(pid: int) -> float:
    """CPU time of the process that serves HTTP for a daemon."""
    command = ["pgrep", "--parent", str(pid), "--full", "memsampd.web.server"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return sum(process_cpu_ns(int(each)) for each in done.stdout.split()) * 1e-9


def sample(directory: Path, port: int, pid: int, elapsed: float) -> dict[str, float]:
    """Measure once."""
    cpu_seconds = web_cpu_seconds(pid)
    seconds, text = scrape(port)
    cpu_seconds = web_cpu_seconds(pid) - cpu_seconds
    status = ask(directory, "status")["status"]
    return {
        "elapsed_seconds": elapsed,
        "rss_mb": status["rss_bytes"] / 1e6,
        "children_rss_mb": replicas_rss(pid) / 1e6,
        "own_cpu_seconds": status["own_cpu_seconds"],
        "own_cpu_share": status["own_cpu_share"],
        "stop_share": status["stop_share"],
        "open_descriptors": status["open_descriptors"],
        "threads": status["threads"],
        "targets": len(status["targets"]),
        "ended": status["ended_targets"],
        "loop_seconds": status["loop_seconds"],
        "scrape_seconds": seconds,
        "scrape_cpu_seconds": cpu_seconds,
        "series": sum(not line.startswith("#") for line in text.splitlines()),
    }


def soak(
    directory: Path, port: int, pid: int, fleet: Sequence[Target], seconds: float
) -> list[dict[str, float]]:
    """Measure as often as Prometheus does, and start again what has ended."""
    started = time.monotonic()
    samples = []
    while (elapsed := time.monotonic() - started) < seconds:
        for each in fleet:
            if each.kind == "end" and each.process.poll() is not None:
                each.process = subprocess.Popen(each.command)
        samples.append(sample(directory, port, pid, elapsed))
        if len(samples) % 4 == 1:
            show(samples[-1])
        time.sleep(SAMPLE_SECONDS)
    return samples


def show(one: dict[str, float]) -> None:
    """A line for people."""
    print(
        f"{one['elapsed_seconds']:6.0f} s: {one['targets']:3.0f} targets, "
        f"{one['rss_mb']:6.1f} MB + {one['children_rss_mb']:6.1f} MB in children, "
        f"{one['own_cpu_share']:6.1%} of a core, held {one['stop_share']:6.2%}, "
        f"{one['open_descriptors']:4.0f} descriptors, {one['threads']:3.0f} threads, "
        f"scrape {one['scrape_seconds'] * 1e3:5.1f} ms of {one['series']:5.0f} series",
        flush=True,
    )


def curves(text: str) -> dict[int, dict[int, list[float]]]:
    """Low and high miss ratio by pid and size, of whole runs."""
    found: dict[int, dict[int, list[float]]] = {}
    for name in ("low", "high"):
        for line in re.findall(rf"^memsampd_miss_{name}_ratio{{(.*)}} (\S+)$", text, re.MULTILINE):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line[0]))
            if labels["policy"] == "lru":
                sizes = found.setdefault(int(labels["pid"]), {})
                sizes.setdefault(int(labels["size_bytes"]), []).append(float(line[1]))
    return found


def judged(fleet: Sequence[Target], text: str) -> tuple[int, int, list[str]]:
    """How many targets have a known curve, how many could have, and which are wrong."""
    known, wrong = curves(text), []
    walkers = [each for each in fleet if each.kind == "walk"]
    with_curve = [each for each in walkers if each.process.pid in known]
    for each in with_curve:
        for size, (low, high) in known[each.process.pid].items():
            if each.size_bytes / 2 < size < each.size_bytes * 2:
                continue
            truth = 1.0 if size < each.size_bytes else 0.0
            if not low - _TOLERANCE <= truth <= high + _TOLERANCE:
                wrong.append(f"{each.size_bytes} at {size}: {low:.3f}..{high:.3f}, not {truth:g}")
    return len(with_curve), len(walkers), wrong


def tally(fleet: Sequence[Target], text: str) -> dict[str, int]:
    """Bursts of long-lived busy targets: those that were taken, and those refused, by reason."""
    walkers = {str(each.process.pid) for each in fleet if each.kind == "walk"}
    found: Counter[str] = Counter()
    pattern = r"^memsampd_(bursts|capture_errors)_total{(.*)} (\S+)$"
    for name, label_text, value in re.findall(pattern, text, re.MULTILINE):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', label_text))
        if labels["pid"] in walkers:
            found["taken" if name == "bursts" else labels["reason"]] += int(float(value))
    return dict(found)


def harmed(fleet: Sequence[Target], patience_seconds: float = 5.0) -> list[str]:
    """Long-lived targets that have ended, or are still traced or stopped after some patience."""
    return [
        f"{each.kind} {each.process.pid} {harm}"
        for each in fleet
        if each.kind != "end" and (harm := harm_of(each.process, patience_seconds))
    ]


def harm_of(process: subprocess.Popen[bytes], patience_seconds: float = 5.0) -> str:
    """What became of a process that was observed; empty if it goes on, as after a hold."""
    give_up = time.monotonic() + patience_seconds
    while True:
        if process.poll() is not None:
            return f"ended: {process.returncode}"
        if read_status(process.pid).tracer_pid:
            harm = "is traced"
        elif any(thread.state in "Tt" for thread in read_threads(process.pid)):
            harm = "is stopped"
        else:
            return ""
        if time.monotonic() > give_up:
            return harm
        time.sleep(0.05)


def state_of(directory: Path, pid: int) -> dict[str, float]:
    """What may leak, with no target there."""
    status = ask(directory, "status")["status"]
    children = subprocess.run(
        ["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=False
    )
    return {
        "rss_mb": status["rss_bytes"] / 1e6,
        "own_cpu_seconds": status["own_cpu_seconds"],
        "descriptors": status["open_descriptors"],
        "threads": status["threads"],
        "children": len(children.stdout.split()),
    }


def cycle(directory: Path, pid: int, number: int, wait_seconds: float) -> int:
    """Attach to a process and let it go, over and over.

    Args:
        directory: the daemon's.
        pid: the process.
        number: of cycles.
        wait_seconds: for how long a burst is waited for each time.

    Returns:
        How often one came.
    """
    with_burst = 0
    with ControlClient(directory / "s", 60) as client:
        for _ in range(number):
            client.ask("attach", pid=pid)
            give_up = time.monotonic() + wait_seconds
            while time.monotonic() < give_up:
                (target,) = client.ask("list")["targets"]
                if target.get("bursts"):
                    with_burst += 1
                    break
                time.sleep(0.05)
            client.ask("detach", pid=pid)
    return with_burst


def cycles(
    directory: Path, pid: int, command: Sequence[str], number: int, wait_seconds: float = 0.0
) -> dict[str, float]:
    """What attaching to a process and letting it go costs, and leaves; a tenth more come first."""
    with subprocess.Popen(command) as process:
        try:
            cycle(directory, process.pid, max(number // 10, 1), wait_seconds)
            before, started = state_of(directory, pid), time.monotonic()
            with_burst = cycle(directory, process.pid, number, wait_seconds)
            seconds, after = time.monotonic() - started, state_of(directory, pid)
            unharmed = not harm_of(process)
        finally:
            process.kill()
    return {
        "cycles": number,
        "with_burst": with_burst,
        "cycle_seconds": seconds / number,
        "cycle_cpu_seconds": (after["own_cpu_seconds"] - before["own_cpu_seconds"]) / number,
        "rss_mb": after["rss_mb"],
        "rss_growth_mb": after["rss_mb"] - before["rss_mb"],
        "leaked_descriptors": after["descriptors"] - before["descriptors"],
        "leaked_threads": after["threads"] - before["threads"],
        "leaked_children": after["children"] - before["children"],
        "unharmed": unharmed,
    }


def both_cycles(
    directory: Path, pid: int, program: Path, number: int
) -> dict[str, dict[str, float]]:
    """Cycles with an idle process, and a hundredth as many with bursts of a busy one."""
    busy = [str(program), "walk", "16384", "0.3", "0", "cycles"]
    return {
        "idle": cycles(directory, pid, ["sleep", "36000"], number),
        "busy": cycles(directory, pid, busy, max(number // 100, 1), 10.0),
    }


def measure_cycles(number: int) -> dict[str, Any]:
    """Cycles only, with a daemon that has time enough for bursts in each."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        budget = "[budget]\nown_cpu = 1.0\nholds = 0.5\n"
        with daemon(directory, f"none-{os.getpid()}", 0, budget) as process:
            ask(directory, "status")  # it is there
            return {"cycles": both_cycles(directory, process.pid, build(directory), number)}


def warmed(directory: Path) -> dict[str, Any]:
    """The daemon's state once a target has come and gone: what all share is there from then on."""
    ask(directory, "status")  # it is there
    with subprocess.Popen(["sleep", "60"]) as process:
        cycle(directory, process.pid, 1, 0.0)
        process.kill()
    return emptied(directory)


def emptied(directory: Path) -> dict[str, Any]:
    """The daemon's state once no target is left."""
    give_up = time.monotonic() + 120
    while (status := ask(directory, "status")["status"])["targets"]:
        if time.monotonic() > give_up:
            break
        time.sleep(0.5)
    return dict(status)


def measure(number: int, seconds: float, count: int) -> dict[str, Any]:
    """Do it all."""
    mark = f"soak-{os.getpid()}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = build(directory)
        with daemon(directory, mark, port) as process:
            before = warmed(directory)
            with targets(program, number, mark) as fleet:
                samples = soak(directory, port, process.pid, fleet, seconds)
                show(samples[-1])
                text = scrape(port)[1]
                with_curve, walkers, wrong = judged(fleet, text)
                hurt = harmed(fleet)
            after = emptied(directory)
            return {
                "minutes": seconds / 60,
                "asked_targets": number,
                "busy": os.getloadavg(),
                "samples": samples,
                **figures_of(samples),
                "known_share": with_curve / max(walkers, 1),
                "bursts": tally(fleet, text),
                "wrong": wrong,
                "harmed": hurt,
                "leaked_descriptors": after["open_descriptors"] - before["open_descriptors"],
                "leaked_threads": after["threads"] - before["threads"],
                "cycles": both_cycles(directory, process.pid, program, count),
            }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_options(parser, "20 targets, a minute and a half")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write them in its section")
    parser.add_argument("--targets", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--cycles", type=int, default=5000)
    args = parser.parse_args(argv)
    if args.quick:
        args.targets, args.minutes, args.cycles = 20, 1.5, 200
    if args.minutes > 0:
        figures = measure(args.targets, args.minutes * 60, args.cycles)
    else:
        figures = measure_cycles(args.cycles)
    print(json.dumps({key: value for key, value in figures.items() if key != "samples"}, indent=1))
    if args.markdown is not None and "samples" in figures:
        replace_section(args.markdown, "soak", markdown(figures))
    return finish(args.json, figures, missed(figures))


if __name__ == "__main__":
    sys.exit(main())
