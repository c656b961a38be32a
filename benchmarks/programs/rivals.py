"""Other ways to see every access of a program, from Debian: how fast they are."""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from programs.running import resolved, under
from programs.workload import Workload, environment, find_program
from reference import tracer

_SETTLE_SECONDS = 2.0  # valgrind and the dynamic linker start
_CHUNK_BYTES = 1 << 20
_GDB_STEPS = 3000
_GDB_MINIMUM = 300
_GDB_SECONDS = 60.0
_GDB_SCRIPT = f"""
python
import time
gdb.execute("record full")
start = time.monotonic()
try:
    gdb.execute("stepi {_GDB_STEPS}", to_string=True)
except gdb.error:  # an instruction that it does not know ends the recording
    pass
taken = time.monotonic() - start
info = gdb.execute("info record", to_string=True)
count = [line.split()[2] for line in info.splitlines() if line.startswith("Log contains ")]
if count and int(count[0]) >= {_GDB_MINIMUM}:
    print("rate", int(count[0]) / taken)
end
"""


def lackey_accesses_per_second(workload: Workload, seconds: float) -> float | None:
    """Trace lines of ``valgrind --tool=lackey --trace-mem=yes``; a modify counts twice."""
    options = ("--tool=lackey", "--trace-mem=yes", "--log-fd={fd}")
    return _traced_rate(workload, options, _count_lackey, seconds)


def memtrace_accesses_per_second(workload: Workload, build: Path, seconds: float) -> float | None:
    """Records of the valgrind tool that makes our references (``reference/memtrace``)."""
    try:
        library = {"VALGRIND_LIB": str(tracer.build(build))}
    except tracer.TracerError:
        return None
    options = ("-q", "--tool=memtrace", "--trace-fd={fd}", "--raw=yes")
    return _traced_rate(
        workload, options, lambda chunk: len(chunk) // tracer.RECORD_BYTES, seconds, library
    )


def _count_lackey(chunk: bytes) -> int:
    return chunk.count(b"\n L") + chunk.count(b"\n S") + 2 * chunk.count(b"\n M")


def _traced_rate(
    workload: Workload,
    options: Sequence[str],
    count: Callable[[bytes], int],
    seconds: float,
    extra_environment: Mapping[str, str] | None = None,
) -> float | None:
    """Run a workload under a tool of valgrind that writes to a pipe; None without valgrind."""
    if find_program("valgrind") is None:
        return None
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, tracer.PIPE_BYTES)
    command = ["valgrind", *(option.format(fd=writer) for option in options)]
    try:
        with under(workload, command, pass_fds=[writer], extra_environment=extra_environment):
            os.close(writer)
            writer = -1
            return _rate((count(chunk) for chunk in _chunks(reader)), seconds)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)


def _chunks(reader: int) -> Iterator[bytes]:
    while chunk := os.read(reader, _CHUNK_BYTES):
        yield chunk


def _rate(counts: Iterator[int], seconds: float) -> float | None:
    """Sum counts for some seconds after the program has settled; per second."""
    first = time.monotonic() + _SETTLE_SECONDS
    begin, total = 0.0, 0
    for count in counts:
        now = time.monotonic()
        if now < first:
            continue
        if begin == 0.0:
            begin = now
            continue
        total += count
        if now - begin >= seconds:
            return total / (now - begin)
    return None


def none_slowdown(workload: Workload, folder: Path) -> float | None:
    """How much longer it takes under ``valgrind --tool=none``, which traces nothing."""
    if workload.result is None or find_program("valgrind") is None:
        return None
    command = resolved(workload.result(folder).command)
    native = _cpu_seconds(command)
    return _cpu_seconds(["valgrind", "-q", "--tool=none", *command]) / native


def _cpu_seconds(command: list[str]) -> float:
    before = os.times()
    subprocess.run(
        command,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def gdb_instructions_per_second(pid: int, folder: Path) -> float | None:
    """Instructions that gdb's ``record full`` records; None if it cannot (it knows no AVX)."""
    if find_program("gdb") is None:
        return None
    script = folder / "record.gdb"
    script.write_text(_GDB_SCRIPT)
    command = ["gdb", "-nx", "-batch", "-iex", "set auto-solib-add off", "-p", str(pid)]
    with subprocess.Popen(
        [*command, "-x", str(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as gdb:
        timer = threading.Timer(_GDB_SECONDS, gdb.terminate)
        timer.start()
        try:
            assert gdb.stdout is not None
            rates = [line.split()[1] for line in gdb.stdout if line.startswith("rate ")]
        finally:
            timer.cancel()
    return float(rates[0]) if rates else None
