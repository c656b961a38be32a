"""Runs a program, alone or under memsampd."""

from __future__ import annotations

import compileall
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import psutil

import memsampd
from reference.programs import environment

FIND_SECONDS = 30.0


class RunError(Exception):
    """A run ended with a status other than 0, or its program never appeared."""


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


def run_alone(command: Sequence[str], cwd: Path) -> None:
    """Run a program without memsampd.

    Raises:
        RunError: it failed.
    """
    with _started(command, cwd):
        pass


def run_recorded(
    command: Sequence[str],
    recording: Path,
    cwd: Path,
    options: Sequence[str] = (),
    address: str | None = None,
) -> float:
    """Run a program under ``memsampd run``.

    Args:
        command: the program and its arguments.
        recording: the file to write.
        cwd: where it runs.
        options: further ones of ``memsampd run``.
        address: host and port where metrics are served; None for nowhere.

    Returns:
        When the program began, by ``time.monotonic``: memsampd's own start-up comes before.

    Raises:
        RunError: it or memsampd failed.
    """
    listen = ("--no-listen",) if address is None else ("--listen", address)
    under = memsampd_command("run", "-o", str(recording), *listen, *options, "--", *command)
    with _started(under, cwd) as process:
        is_found = _find(process, command[0])
        start_seconds = time.monotonic()
    if not is_found:
        raise RunError(f"{command[0]} never ran under memsampd")
    return start_seconds


@contextlib.contextmanager
def _started(command: Sequence[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and wait for its end.

    Raises:
        RunError: it failed.
    """
    process = subprocess.Popen(
        command,
        env=environment(),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        _, problem = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode != 0:
        raise RunError(f"{' '.join(command)}: status {process.returncode}: {problem.strip()}")


def _find(process: subprocess.Popen[str], program: str) -> bool:
    """Wait until a process below ``process`` runs a program; False: ``process`` ended before.

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
                    return True
        time.sleep(0.001)
    return False


def _descendants(process: psutil.Process) -> list[int]:
    try:
        return [child.pid for child in process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
