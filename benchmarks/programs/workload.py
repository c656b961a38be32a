"""What the catalogue says of each program."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ANONYMOUS = "[anonymous]"  # code that a JIT compiler wrote into memory without a file


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a program.

    Attributes:
        command: the program to observe and its arguments.
        feeder: a command whose output is its input; empty: no input.
        client: a command that runs beside it and gives it work; waits for it by itself.
        environment: what it needs beyond :func:`environment`.
    """

    command: Sequence[str]
    feeder: Sequence[str] = ()
    client: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """One program of the catalogue.

    Attributes:
        name: how users choose it.
        what: what it does, for tables.
        code: part of the path of the file in which most of its instructions lie, or ``ANONYMOUS``:
            a burst none of whose instructions lie there did not observe it.
        packages: Debian packages that bring all it needs.
        programs: executables that must be there, names or paths; the first is the one observed
            unless it is compiled here.
        endless: prepares a folder (kept from run to run) and says how to start it so that it
            computes without end, or for a minute at least.
        modules: Python modules that the present interpreter must have.
        warmup_cpu_seconds: CPU time after which it does what it will do for ever.
    """

    name: str
    what: str
    code: str
    packages: Sequence[str]
    programs: Sequence[str]
    endless: Callable[[Path], Launch]
    modules: Sequence[str] = ()
    warmup_cpu_seconds: float = 0.5

    def lacks(self) -> str:
        """What is missing here and how to get it, for people; empty if nothing is."""
        missing = [name for name in self.programs if find_program(name) is None]
        modules = [name for name in self.modules if importlib.util.find_spec(name) is None]
        if missing:
            return (
                f"not installed: apt-get install {' '.join(self.packages)} ({', '.join(missing)})"
            )
        return f"not installed: pip install {' '.join(modules)}" if modules else ""


def environment() -> dict[str, str]:
    """Return what programs run in: nothing of the caller's locale, allocator or Python."""
    return {
        "PATH": search_path(),
        "HOME": os.environ.get("HOME", "/"),  # rustc may be a link to rustup, which looks there
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def search_path() -> str:
    """Return the caller's PATH, with the system's folders, which a cron job's may lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/bin:/usr/bin:/bin"])


def find_program(name: str) -> str | None:
    """Return the path of an executable; None if it is not there."""
    return shutil.which(name, path=search_path())
