"""Targets to observe, and what observes them (from ``benchmarks/programs``)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from programs.observing import (
    Tally,
    attacker,
    children,
    observe,
    observed,
    traces_left,
    wait_until_clean,
)

__all__ = [
    "Tally",
    "attacker",
    "children",
    "compile_c",
    "observe",
    "observed",
    "running",
    "traces_left",
    "wait_until_clean",
    "write_data",
]


def compile_c(directory: Path, source: str, *flags: str) -> Path:
    """Compile one C program; its path."""
    code = directory / "program.c"
    code.write_text(source)
    program = directory / "program"
    command = ["gcc", "-O1", "-g", "-o", str(program), str(code), *flags, "-pthread"]
    subprocess.run(command, check=True)
    return program


@contextmanager
def running(*command: str | Path, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A child that is killed at the end, whatever happens."""
    process = subprocess.Popen(  # type: ignore[call-overload]
        [str(part) for part in command],
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, **options},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def write_data(path: Path, size_bytes: int) -> None:
    """Text that compressors find some, but not much, to do with."""
    draw = np.random.default_rng(5)
    words = draw.integers(97, 123, (5000, 7), np.uint8)
    words[:, 6] = 32
    path.write_bytes(
        words[
            (draw.random(size_bytes // 7 + 1, np.float32) ** 3 * 5000).astype(np.int16)
        ].tobytes()[:size_bytes]
    )
