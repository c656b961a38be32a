"""Files of bursts: opening, reading and writing them, with errors for people."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import BinaryIO

from memsampd.errors import TraceError


def open_input(path: Path) -> BinaryIO:
    """Open a file to read.

    Raises:
        TraceError: there is none, or it may not be read.
    """
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise TraceError(f"no trace at {path}", "check the path") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def read_some(file: BinaryIO, size_bytes: int, path: Path) -> bytes:
    """Read so many bytes, or fewer at the end.

    Raises:
        TraceError: they cannot be read.
    """
    try:
        return file.read(size_bytes)
    except OSError as error:
        raise _unreadable(path, error) from error


def open_new(path: Path, overwrite: bool) -> FileIO:
    """Make a file, unbuffered.

    Raises:
        TraceError: it exists and is not to be overwritten, or cannot be written.
    """
    try:
        return path.open("wb" if overwrite else "xb", buffering=0)
    except FileExistsError as error:
        raise TraceError(f"{path} exists already", "choose another name, or --force") from error
    except OSError as error:
        raise TraceError(
            f"cannot write {path}: {error.strerror}", "choose a file in a writable directory"
        ) from error


def write_all(file: FileIO, data: bytes, path: Path) -> None:
    """Write all of ``data``.

    Raises:
        TraceError: it cannot be written.
    """
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[file.write(rest) or 0 :]
    except OSError as error:
        raise TraceError(
            f"cannot write {path}: {error.strerror}", "free space, or write to another file system"
        ) from error


def _unreadable(path: Path, error: OSError) -> TraceError:
    return TraceError(f"cannot read {path}: {error.strerror}", "name a file that you may read")
