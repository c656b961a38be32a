"""Rows of accesses, and traces of them, for the tests of traces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from memsampd.errors import TraceError
from memsampd.exporters.snapshot import TargetInfo
from memsampd.exporters.trace import BurstFinish, BurstStart, TraceHeader, TraceReader, TraceWriter
from memsampd.exporters.trace.protocols import BurstReader, BurstWriter
from memsampd.sampler.records import AccessChunk, BurstCost

Row: TypeAlias = tuple[int, int, int, bool]

HEADER = TraceHeader(
    memsampd_version="0.0.0",
    target=TargetInfo(pid=4242, start_ticks=99, command="sqlite3", executable="/usr/bin/sqlite3"),
    source="replica",
    command=["sqlite3", ":memory:"],
)
COST = BurstCost(0.001, 1, 0.001, 0.25, 0.125, 0.5)

u64 = st.integers(0, 2**64 - 1)
# What programs do, and what they could do: few instructions and near addresses, or anything.
row = st.tuples(
    st.sampled_from([0x401000, 0x401007, 0x40100A, 0x7F0000000010]) | u64,
    st.integers(0x7FFD00000000, 0x7FFD00000100) | u64,
    st.sampled_from([1, 4, 8, 64]) | st.integers(0, 2**16 - 1),
    st.booleans(),
)
rows = st.lists(row, max_size=60)


def chunk_of(wanted: Sequence[Row]) -> AccessChunk:
    ip, address, size_bytes, is_write = zip(*wanted, strict=True) if wanted else ((), (), (), ())
    return AccessChunk(
        np.array(ip, np.uint64),
        np.array(address, np.uint64),
        np.array(size_bytes, np.uint16),
        np.array(is_write, np.bool_),
    )


def rows_of(chunk: AccessChunk) -> list[Row]:
    columns = chunk.ip, chunk.address, chunk.size_bytes, chunk.is_write
    return list(zip(*(column.tolist() for column in columns), strict=True))


def invented(count: int, seed: int = 1) -> AccessChunk:
    """What a loop over an array with a stack frame would reference."""
    random = np.random.default_rng(seed)
    turn = np.arange(count) // 4
    site = np.arange(count) % 4
    address = np.choose(
        site,
        [
            0x7FFD0000 + turn * 0,
            0x7F0000000000 + 8 * turn,
            0x560000000000 + 64 * random.integers(0, 1000, count),
            0x7FFD0010 + turn * 0,
        ],
    )
    return AccessChunk(
        (0x401000 + 5 * site).astype(np.uint64),
        address.astype(np.uint64),
        np.choose(site, [8, 8, 4, 8]).astype(np.uint16),
        site == 3,
    )


def start(tid: int = 7) -> BurstStart:
    return BurstStart(tid=tid, time_seconds=1.5, cpu_seconds=0.75, max_accesses=100)


def finish(count: int) -> BurstFinish:
    return BurstFinish(
        end="syscall",
        end_detail="read",
        rows=count,
        instructions=3 * count,
        prefetches=1,
        stopped_seconds=1.625,
        cost=COST,
    )


def write_bursts(writer: BurstWriter, bursts: Iterable[Sequence[AccessChunk]]) -> None:
    for tid, chunks in enumerate(bursts):
        writer.begin_burst(start(tid))
        for chunk in chunks:
            writer.write(chunk)
        writer.end_burst(finish(sum(map(len, chunks))))
    writer.close()


def write_trace(
    path: Path, bursts: Iterable[Sequence[AccessChunk]], block_rows: int = 1 << 18
) -> Path:
    write_bursts(TraceWriter(path, HEADER, block_rows=block_rows), bursts)
    return path


def read_bursts(reader: BurstReader) -> tuple[list[list[Row]], list[BurstFinish], str]:
    """All that is whole: rows and finish of the bursts; and what was wrong with the rest."""
    found: list[list[Row]] = []
    finishes: list[BurstFinish] = []
    try:
        for burst in reader:
            found.append([])
            for chunk in burst:
                found[-1] += rows_of(chunk)
            assert burst.finish is not None
            finishes.append(burst.finish)
    except TraceError as error:
        return found, finishes, str(error)
    return found, finishes, ""


def read_trace(path: Path) -> tuple[list[list[Row]], list[BurstFinish], str]:
    """The same of a trace; nothing but the error of one without a whole header."""
    try:
        with TraceReader(path) as reader:
            return read_bursts(reader)
    except TraceError as error:
        return [], [], str(error)
