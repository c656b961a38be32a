"""Builds our valgrind tool (``memtrace/memtrace.c``) and reads what it writes.

Needs a C compiler and Debian's ``valgrind`` package, which brings the tool interface's headers and
the static libraries of valgrind's core.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import subprocess
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from reference.records import Block, Stretch

SOURCE = Path(__file__).with_name("memtrace") / "memtrace.c"
TOOL = "memtrace-amd64-linux"
HEADERS = Path("/usr/include/valgrind")
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu/valgrind")
OTHER_TOOLS = Path("/usr/libexec/valgrind")

# As valgrind's own Makefiles build a tool for amd64-linux.
COMPILE_FLAGS = (
    *("-std=gnu11", "-O2", "-m64", "-Wall", "-Wextra", "-Werror"),
    *("-fno-stack-protector", "-fno-strict-aliasing", "-fno-builtin", "-fno-pie"),
    "-fcf-protection=none",
    *("-DVGA_amd64=1", "-DVGO_linux=1", "-DVGP_amd64_linux=1", "-DVGPV_amd64_linux_vanilla=1"),
    *("-isystem", str(HEADERS)),
)
LINK_FLAGS = (
    *("-static", "-no-pie", "-nodefaultlibs", "-nostartfiles", "-u", "_start"),
    *("-Wl,-Ttext-segment=0x58000000", "-Wl,--build-id=none"),
)
LINK_LIBRARIES = (
    *(str(LIBRARIES / f"lib{name}-amd64-linux.a") for name in ("coregrind", "vex", "gcc-sup")),
    "-lgcc",
)

RECORD_BYTES = 8
CHUNK_BYTES = 1 << 17
FRAME_HEADER = struct.Struct("=6Q")  # as in memtrace.c
FRAME_OF_BLOCKS = 2
SAMPLE_EVERY_INSTRUCTIONS = 10_000
PIPE_BYTES = 1 << 20  # the most that an unprivileged process may ask for


class TracerError(Exception):
    """The tool could not be built, or the traced program failed."""


def build(folder: Path) -> Path:
    """Build the tool, unless this version of it is there already.

    Args:
        folder: where built tools are kept, one folder a version.

    Returns:
        The folder to give to valgrind as ``VALGRIND_LIB``.

    Raises:
        TracerError: valgrind's headers and libraries are missing, or the build failed.
    """
    if not (HEADERS / "pub_tool_tooliface.h").exists() or not LIBRARIES.exists():
        raise TracerError(f"no {HEADERS} or {LIBRARIES}: install Debian's package 'valgrind'")
    recipe = repr((SOURCE.read_bytes(), COMPILE_FLAGS, LINK_FLAGS, valgrind_version()))
    target = folder / f"memtrace-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if (target / TOOL).exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    for other in OTHER_TOOLS.iterdir():  # the preloaded libraries and the other tools
        with contextlib.suppress(FileExistsError):
            (target / other.name).symlink_to(other)
    object_file, unfinished = target / "memtrace.o", target / f"{TOOL}.new"
    _run("cc", *COMPILE_FLAGS, "-c", str(SOURCE), "-o", str(object_file))
    _run("cc", *LINK_FLAGS, "-o", str(unfinished), str(object_file), *LINK_LIBRARIES)
    unfinished.rename(target / TOOL)
    return target


def valgrind_version() -> str:
    """Return what ``valgrind --version`` prints."""
    return _run("valgrind", "--version").strip()


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise TracerError(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise TracerError(f"{' '.join(command)}: {error.stderr.strip()}") from error
    return done.stdout


def words(descriptor: int, options: Sequence[str] = ()) -> list[str]:
    """Return the words to put before a command to have it write its trace to a descriptor.

    Its environment must name what :func:`build` returned as ``VALGRIND_LIB``.
    """
    return ["valgrind", "-q", "--tool=memtrace", f"--trace-fd={descriptor}", *options]


@contextlib.contextmanager
def _running(
    command: Sequence[str],
    library: Path,
    options: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: Path | None,
) -> Iterator[BinaryIO]:
    """Run a program under the tool and yield the stream that this writes.

    Raises:
        TracerError: the program ended with a status other than 0.
    """
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with open(reader, "rb", buffering=0) as stream:
        process = subprocess.Popen(
            [*words(writer, options), *command],
            env={**(os.environ if env is None else env), "VALGRIND_LIB": str(library)},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[writer],
        )
        os.close(writer)
        try:
            yield stream
        except GeneratorExit:  # nobody wants the rest
            process.kill()
            raise
        finally:
            stream.close()
            status = process.wait()
    if status != 0:
        raise TracerError(f"{command[0]} ended with status {status} under valgrind")


def references(
    command: Sequence[str],
    library: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[NDArray[np.uint64]]:
    """Run a program under the tool and tell each of its references.

    Args:
        command: the program and its arguments.
        library: what :func:`build` returned.
        env: its environment; that of this process if None.
        cwd: the folder it runs in.

    Yields:
        Records in program order, shape (n,), uint64, as laid out in ``memtrace.c``.

    Raises:
        TracerError: the program ended with a status other than 0.
    """
    with _running(command, library, ["--raw=yes"], env, cwd) as stream:
        while len(content := _read(stream, CHUNK_BYTES)):
            yield np.frombuffer(content, np.uint64)


def stretches(
    command: Sequence[str],
    library: Path,
    blocks: list[Block],
    *,
    quantum_accesses: int,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Generator[Stretch]:
    """Run a program under the tool and tell the lines that it accesses.

    Args:
        command: the program and its arguments.
        library: what :func:`build` returned.
        blocks: gets the blocks that the stretches' samples refer to, in the order of their numbers.
        quantum_accesses: a stretch ends at each multiple of so many accesses, or before.
        env: its environment; that of this process if None.
        cwd: the folder it runs in.

    Raises:
        TracerError: the program ended with a status other than 0, or the stream is broken.
    """
    options = [f"--quantum={quantum_accesses}", f"--sample-every={SAMPLE_EVERY_INSTRUCTIONS}"]
    with _running(command, library, options, env, cwd) as stream:
        yield from read_stretches(stream, blocks)


def read_stretches(stream: BinaryIO, blocks: list[Block]) -> Generator[Stretch]:
    """Read what the tool writes until its end: as :func:`stretches`.

    Raises:
        TracerError: the stream is broken.
    """
    while len(header := _read(stream, FRAME_HEADER.size)) == FRAME_HEADER.size:
        kind, runs, samples, text_bytes, accesses, instructions = FRAME_HEADER.unpack(header)
        size = RECORD_BYTES * (runs + samples) + text_bytes
        content = _read(stream, size)
        if len(content) != size:
            raise TracerError("the trace ends in the middle of a frame")
        if kind == FRAME_OF_BLOCKS:
            blocks.extend(map(_block, bytes(content).decode().splitlines()))
            continue
        told = np.frombuffer(content, np.uint64)
        yield Stretch(told[:runs], accesses, instructions, told[runs:].astype(np.int64))


def _block(line: str) -> Block:
    """Read a line about a block: number, address, instructions, offset in the file, file."""
    _, _, instructions, offset, file = line.split(" ", 4)
    return Block("" if file == "-" else file, int(offset), int(instructions))


def _read(stream: BinaryIO, size: int) -> memoryview:
    """Read so many bytes, or what is left of the stream."""
    content = np.empty(size, np.uint8).data
    filled = 0
    while filled < size and (count := stream.readinto(content[filled:])):  # type: ignore[attr-defined]
        filled += int(count)
    return content[:filled]
