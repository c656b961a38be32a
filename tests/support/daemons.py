"""A real daemon, and what it is asked in tests."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import MEMSAMPD
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.daemon.node.control_client import ControlClient
from memsampd.errors import CapabilityError

GENEROUS = """
[budget]
own_cpu = 0.5
holds = 0.1
[session]
own_cpu = 0.5
budget = 0.1
"""
"""Configuration with which bursts come as soon as they can."""


def rule(mark: str, more: str = "") -> str:
    """A rule for those who have this in their command line."""
    return f'[[rules]]\nname = "marked"\ncommand_line = "{mark}"\n{more}\n'


@dataclass
class Daemon:
    """One that runs.

    Attributes:
        process: it.
        directory: its configuration, socket, state and log.
    """

    process: subprocess.Popen[bytes]
    directory: Path

    @property
    def socket(self) -> Path:
        return self.directory / "control.sock"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        with ControlClient(self.socket, PATIENCE_SECONDS) as client:
            return client.ask(command, **fields)

    def targets(self) -> dict[int, dict[str, Any]]:
        """Targets by pid."""
        return {each["pid"]: each for each in self.ask("list")["targets"]}

    def wait_for(self, is_so: Callable[[dict[int, dict[str, Any]]], object]) -> Any:
        """Wait until something holds of the targets; what it said."""
        return wait_for(lambda: is_so(self.targets()), lambda: f"{self.targets()}\n{self.log}")

    def stop(self) -> int:
        """End it as systemd would; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def daemon(
    directory: Path,
    config: str = "",
    *,
    before: Sequence[str] = (),
    options: Sequence[str] = (),
    environ: dict[str, str] | None = None,
) -> Iterator[Daemon]:
    """A daemon with a configuration, once it answers.

    Args:
        directory: is made if need be.
        config: what its configuration says.
        before: a command that is to run it.
        options: more of them.
        environ: more of the environment.
    """
    directory.mkdir(parents=True, exist_ok=True)
    often = 'listen = ""\nscan_seconds = 0.2\npublish_seconds = 0.5\n'
    (directory / "config.toml").write_text(often + config)
    command = [
        *before,
        MEMSAMPD,
        "daemon",
        "--config",
        str(directory / "config.toml"),
        "--socket",
        str(directory / "control.sock"),
        "--state-dir",
        str(directory / "state"),
        *options,
    ]
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **(environ or {})}
        )
    running = Daemon(process, directory)
    try:
        wait_for(lambda: _answers(running), lambda: running.log)
        yield running
    finally:
        process.kill()
        process.wait()


def _answers(running: Daemon) -> bool:
    if running.process.poll() is not None:
        raise RuntimeError(f"it ended: {running.log}")
    try:
        running.ask("status")
    except CapabilityError:
        return False
    return True
