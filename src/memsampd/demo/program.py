"""Compiles the bundled example (``kernels.c``) with the machine's own C compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from memsampd.errors import CapabilityError

SOURCE_NAME = "kernels.c"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O2", "-g")


def read_source() -> str:
    """Return the text of the example's C source."""
    return resources.files("memsampd.demo").joinpath(SOURCE_NAME).read_text(encoding="utf-8")


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user that keeps compiled examples (XDG cache)."""
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(
        environment.get("HOME") or tempfile.gettempdir(), ".cache"
    )
    return Path(cache) / "memsampd"


def find_compiler(environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of a C compiler: ``$CC`` if set, or the first of cc, gcc, clang.

    Raises:
        CapabilityError: there is none.
    """
    candidates = (environment["CC"],) if environment.get("CC") else COMPILERS
    for name in candidates:
        if path := shutil.which(name, path=environment.get("PATH")):
            return path
    raise CapabilityError(
        f"the example needs a C compiler, and none of {', '.join(candidates)} is in PATH",
        "install one (Debian: apt install gcc) or run memsampd on a program of your own",
    )


def compile_demo(
    folder: Path | None = None, *, environment: Mapping[str, str] = os.environ
) -> Path:
    """Compile the example, unless this version of it is there already.

    Args:
        folder: where to put the executable; :func:`default_folder` if None.
        environment: variables that name the compiler and the folders.

    Returns:
        Path of the executable; ``--help``-like usage stands at the top of its source.

    Raises:
        CapabilityError: there is no compiler, it failed, or the folder cannot be written.
    """
    compiler = find_compiler(environment)
    source = read_source()
    version = hashlib.sha256(repr((source, compiler, FLAGS)).encode()).hexdigest()[:12]
    target = (folder or default_folder(environment)) / version / "kernels"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            # Built aside and renamed: another process never sees half an executable.
            built = Path(scratch) / target.name
            _compile(compiler, source, built)
            built.rename(target)
    except OSError as error:
        raise CapabilityError(
            f"cannot write the compiled example to {target.parent}: {error.strerror}",
            "set XDG_CACHE_HOME to a folder that you may write",
        ) from error
    return target


def _compile(compiler: str, source: str, output: Path) -> None:
    source_file = output.with_name(SOURCE_NAME)
    source_file.write_text(source, encoding="utf-8")
    done = subprocess.run(
        [compiler, *FLAGS, "-o", str(output), str(source_file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        first_line = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise CapabilityError(
            f"{compiler} cannot compile the example: {first_line}",
            "install the C library's headers (Debian: apt install libc6-dev)",
        )
