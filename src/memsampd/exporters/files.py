"""Opening, reading and writing files, with errors for people."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import msgspec

from memsampd.errors import MemsampdError, TraceError


class FileKind(msgspec.Struct, frozen=True):
    """A kind of files.

    Attributes:
        name: of one of them, for people: "trace".
        error: what is raised where one cannot be used.
    """

    name: str
    error: type[MemsampdError]


TRACE = FileKind("trace", TraceError)


def open_input(path: Path, kind: FileKind) -> BinaryIO:
    """Open a file to read.

    Raises:
        MemsampdError: the kind's: there is none, or it may not be read.
    """
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise kind.error(f"no {kind.name} at {path}", "check the path") from error
    except OSError as error:
        raise _unreadable(path, kind, error) from error


def read_some(file: BinaryIO, size_bytes: int, path: Path, kind: FileKind) -> bytes:
    """Read so many bytes, or fewer at the end.

    Raises:
        MemsampdError: the kind's: they cannot be read.
    """
    try:
        return file.read(size_bytes)
    except OSError as error:
        raise _unreadable(path, kind, error) from error


def open_new(path: Path, kind: FileKind, overwrite: bool) -> FileIO:
    """Make a file, unbuffered.

    Raises:
        MemsampdError: the kind's: it exists and is not to be overwritten, or cannot be written.
    """
    try:
        return path.open("wb" if overwrite else "xb", buffering=0)
    except FileExistsError as error:
        raise _existing(path, kind) from error
    except OSError as error:
        raise _unwritable(path, kind, error) from error


def check_new(path: Path, kind: FileKind, overwrite: bool) -> None:
    """See beforehand whether :func:`open_new` would refuse a file; all is left as it is.

    Raises:
        MemsampdError: the kind's: it exists and is not to be overwritten, or cannot be written.
    """
    if os.path.lexists(path) and not overwrite:
        raise _existing(path, kind)
    try:
        if path.is_fifo():  # its reader would see that it is opened, and closed
            return
        if path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
            return
        made = os.path.realpath(path)  # it may be a link to what is not there
        os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        os.unlink(made)
    except FileExistsError as error:  # others have just made it
        if not overwrite:
            raise _existing(path, kind) from error
    except OSError as error:
        raise _unwritable(path, kind, error) from error


def write_all(file: FileIO, data: bytes, path: Path, kind: FileKind) -> None:
    """Write all of ``data``.

    Raises:
        MemsampdError: the kind's: it cannot be written.
    """
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[file.write(rest) or 0 :]
    except OSError as error:
        raise kind.error(
            f"cannot write {path}: {error.strerror}", "free space, or write to another file system"
        ) from error


def _existing(path: Path, kind: FileKind) -> MemsampdError:
    return kind.error(f"{path} exists already", "choose another name, or --force")


def _unwritable(path: Path, kind: FileKind, error: OSError) -> MemsampdError:
    return kind.error(
        f"cannot write {path}: {error.strerror}", "choose a file in a writable directory"
    )


def _unreadable(path: Path, kind: FileKind, error: OSError) -> MemsampdError:
    return kind.error(f"cannot read {path}: {error.strerror}", "name a file that you may read")
