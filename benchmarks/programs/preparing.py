"""Making what workloads need in a folder: inputs and executables, each made once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from programs.workload import environment
from reference.inputs import MIB, write_c_source, write_corpus

SOURCES = Path(__file__).with_name("sources")
WARNINGS = ("-Wall", "-Wextra", "-Werror")


class PreparationError(Exception):
    """A program could not be compiled."""


def corpus(folder: Path, size_mib: int) -> Path:
    """Write text, records, numbers and noise, unless they are there."""
    return _made(folder / f"corpus-{size_mib}", lambda path: write_corpus(path, size_mib * MIB))


def c_source(folder: Path, functions: int) -> Path:
    """Write a preprocessed C file of so many functions, unless it is there."""
    return _made(
        folder / f"generated-{functions}.i", lambda path: write_c_source(path, functions=functions)
    )


def compiled(
    folder: Path,
    source: str,
    target: str,
    command: Sequence[str],
    *,
    libraries: Sequence[str] = (),
    extra_environment: Mapping[str, str] | None = None,
) -> Path:
    """Compile a source of ours, unless that is done.

    Args:
        folder: where it is made.
        source: its name in ``sources``.
        target: name of what is made.
        command: compiler and flags; ``-o TARGET SOURCE`` is added.
        libraries: what comes behind the source.
        extra_environment: for the compiler.

    Raises:
        PreparationError: the compiler failed.
    """
    path = SOURCES / source
    return _made(
        folder / target,
        lambda unfinished: run(
            [*command, "-o", str(unfinished), str(path), *libraries], extra_environment
        ),
        newer_than=path,
    )


def compiled_java(folder: Path, source: str) -> Path:
    """Compile a class of ours, unless that is done; returns its file.

    Raises:
        PreparationError: the compiler failed.
    """
    path, target = SOURCES / source, folder / Path(source).with_suffix(".class").name
    if not _is_newer(target, path):
        folder.mkdir(parents=True, exist_ok=True)
        run(["javac", "-d", str(folder), str(path)])
    return target


def run(command: Sequence[str], extra_environment: Mapping[str, str] | None = None) -> str:
    """Run a compiler; returns what it printed.

    Raises:
        PreparationError: it failed.
    """
    done = subprocess.run(
        command,
        env={**environment(), **(extra_environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise PreparationError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _made(path: Path, make: Callable[[Path], object], newer_than: Path | None = None) -> Path:
    """Make a file under another name first: whoever is killed meanwhile leaves no half of it."""
    if not path.exists() or (newer_than is not None and not _is_newer(path, newer_than)):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"new-{os.getpid()}-{path.name}")
        make(unfinished)
        unfinished.replace(path)
    return path


def _is_newer(path: Path, source: Path) -> bool:
    return path.exists() and path.stat().st_mtime >= source.stat().st_mtime
