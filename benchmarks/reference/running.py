"""Runs a program, alone or under memsampd, and times the program itself."""

from __future__ import annotations

import compileall
import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

import memsampd
from reference.programs import environment

FIND_SECONDS = 30.0


class RunError(Exception):
    """A run ended with a status other than 0, or its program never appeared."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the program itself ran.

    Attributes:
        wall_seconds: from its appearance to its exit; memsampd's own start-up is not in it.
        total_cpu_seconds: CPU time of all that was started, memsampd and its replica included.
        start_seconds: when it appeared, by ``time.monotonic``; 0 if that was not kept.
    """

    wall_seconds: float
    total_cpu_seconds: float
    start_seconds: float = 0.0


@cache
def _compile_package() -> None:
    """Compile memsampd's modules, as pip does where it installs a package.

    Else each start of a checkout compiles them, if Python is told to write no bytecode.
    """
    compileall.compile_dir(Path(memsampd.__file__).parent, quiet=1)


def memsampd_command(*arguments: str) -> list[str]:
    """Return the command line of the memsampd that this Python has."""
    _compile_package()
    return [sys.executable, "-m", "memsampd.cli.main", *arguments]


def run_alone(command: Sequence[str], cwd: Path) -> Timing:
    """Run a program without memsampd.

    Raises:
        RunError: it failed.
    """
    return _run(command, None, cwd)


def run_recorded(
    command: Sequence[str],
    recording: Path,
    cwd: Path,
    options: Sequence[str] = (),
    address: str | None = None,
) -> Timing:
    """Run a program under ``memsampd run``.

    Args:
        command: the program and its arguments.
        recording: the file to write.
        cwd: where it runs.
        options: further ones of ``memsampd run``.
        address: host and port where metrics are served; None for nowhere.

    Raises:
        RunError: it or memsampd failed.
    """
    listen = ("--no-listen",) if address is None else ("--listen", address)
    under = memsampd_command("run", "-o", str(recording), *listen, *options, "--", *command)
    return _run(under, command[0], cwd)


def _run(
    command: Sequence[str],
    program: str | None,
    cwd: Path,
) -> Timing:
    """Run a command; if ``program`` is given, time the first process below it that runs that."""
    before = os.times()
    process = subprocess.Popen(
        command,
        env=environment(),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    start = time.monotonic()
    try:
        pid: int | None = process.pid
        if program is not None:
            pid = _find(process, program)
            start = time.monotonic()
        if pid is not None:
            _wait_for_exit(pid)
        end = time.monotonic()
        _, problem = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    after = os.times()
    if process.returncode != 0 or pid is None:
        raise RunError(f"{' '.join(command)}: status {process.returncode}: {problem.strip()}")
    cpu_seconds = after.children_user + after.children_system
    cpu_seconds -= before.children_user + before.children_system
    return Timing(end - start, cpu_seconds, start)


def _find(process: subprocess.Popen[str], program: str) -> int | None:
    """Return the pid of the first process below ``process`` that runs a program.

    A process shows its parent's executable until it executes its own: so the moment at which it
    is found is the moment at which the program began, within a few milliseconds.

    Raises:
        RunError: there is no such program.
    """
    found = shutil.which(program, path=environment()["PATH"])
    if found is None:
        raise RunError(f"{program} is not installed")
    executable = os.path.realpath(found)
    root = psutil.Process(process.pid)
    deadline = time.monotonic() + FIND_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for pid in _descendants(root):
            with contextlib.suppress(OSError):  # it has gone
                if os.readlink(f"/proc/{pid}/exe") == executable:
                    return pid
        time.sleep(0.001)
    return None


def _descendants(process: psutil.Process) -> list[int]:
    try:
        return [child.pid for child in process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _wait_for_exit(pid: int) -> None:
    """Wait until a process has ended, whether or not anyone has collected it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [])
    finally:
        os.close(descriptor)
