"""Trace files: what is written is read, and no damage goes unnoticed."""

from __future__ import annotations

import itertools
import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tracing_rows import (
    HEADER,
    Row,
    chunk_of,
    finish,
    invented,
    read_trace,
    rows,
    rows_of,
    start,
    write_trace,
)

from memsampd.errors import TraceError
from memsampd.exporters.frames import FRAME_HEADER, PRELUDE, frame
from memsampd.exporters.trace import TraceReader, TraceWriter
from memsampd.exporters.trace.columns import AccessBlock
from memsampd.exporters.trace.format import (
    FORMAT,
    BurstFinish,
    BurstStart,
    Record,
    decode,
)

BLOCK_ROWS = 7
SMALL = [invented(9, 1), invented(4, 2)]
TRUTH = [rows_of(chunk) for chunk in SMALL]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(rows, max_size=4), max_size=4))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, bursts: list[list[list[Row]]]
) -> None:
    path = tmp_path_factory.mktemp("t") / "x"
    write_trace(path, [list(map(chunk_of, burst)) for burst in bursts], BLOCK_ROWS)
    expected = [[row for part in burst for row in part] for burst in bursts]
    with TraceReader(path) as reader:
        assert reader.header == HEADER
        for tid, (burst, wanted) in enumerate(zip(reader, expected, strict=True)):
            assert burst.start == start(tid)
            assert burst.finish is None
            parts = [rows_of(chunk) for chunk in burst]
            assert all(len(part) <= BLOCK_ROWS for part in parts)
            assert [row for part in parts for row in part] == wanted
            assert burst.finish == finish(len(wanted))
        assert reader.footer is not None
        assert (reader.footer.bursts, reader.footer.rows) == (len(bursts), sum(map(len, expected)))
        assert reader.bytes_read == path.stat().st_size


def test_bursts_that_are_not_read_are_skipped(tmp_path: Path) -> None:
    chunks = [invented(20, seed) for seed in range(4)]
    path = write_trace(tmp_path / "x", [[chunk] for chunk in chunks], BLOCK_ROWS)
    with TraceReader(path) as reader:
        bursts = iter(reader)
        next(bursts)
        second = next(bursts)
        assert rows_of(next(iter(second))) == rows_of(chunks[1])[:BLOCK_ROWS]
        last = list(bursts)[-1]
        assert (second.finish, last.finish) == (finish(20), finish(20))
        assert list(last) == []


def test_why_it_ended_is_kept(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "x", HEADER)
    writer.close("the target ended", {"not-running": 2})
    writer.close()
    with TraceReader(tmp_path / "x") as reader:
        assert list(reader) == []
        assert reader.footer is not None
        assert reader.footer.exit_reason == "the target ended"
        assert reader.footer.refusals == {"not-running": 2}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A trace of two bursts, of two blocks and of one."""
    path = tmp_path_factory.mktemp("t") / "x"
    return write_trace(path, [[chunk] for chunk in SMALL], BLOCK_ROWS).read_bytes()


def frames(data: bytes) -> Iterator[tuple[int, int, Record]]:
    """Begin, end and record of the frames of a whole trace."""
    at = PRELUDE.size
    while at < len(data):
        begin = at + FRAME_HEADER.size
        length, _, _ = FRAME_HEADER.unpack(data[at:begin])
        yield at, begin + length, decode(data[begin : begin + length], zstandard.ZstdDecompressor())
        at = begin + length


def whole_before(data: bytes, position: int) -> tuple[list[int], int]:
    """Rows of each burst, and bursts ended, in the whole frames before a position."""
    found: list[int] = []
    ended = 0
    left = 0
    for _, end, record in frames(data):
        if end > position:
            break
        if isinstance(record, BurstStart):
            found.append(0)
            left = len(TRUTH[len(found) - 1])
        elif isinstance(record, AccessBlock):
            found[-1] += min(BLOCK_ROWS, left)
            left -= min(BLOCK_ROWS, left)
        elif isinstance(record, BurstFinish):
            ended += 1
    return found, ended


def check(path: Path, data: bytes, small: bytes, position: int) -> str:
    """Damage at ``position``: everything whole before it is given, nothing else, and an error."""
    path.write_bytes(data)
    found, finishes, message = read_trace(path)
    lengths, ended = whole_before(small, position)
    assert [len(burst) for burst in found] == lengths
    assert len(finishes) == ended
    for burst, truth in zip(found, TRUTH, strict=False):
        assert burst == truth[: len(burst)]
    assert message
    return message


def test_every_truncation_gives_what_is_whole_and_an_error(small: bytes, tmp_path: Path) -> None:
    for length in range(len(small)):
        message = check(tmp_path / "x", small[:length], small, length)
        assert ("early" in message) == (length >= len(FORMAT.magic)), message


def test_no_flipped_bit_goes_unnoticed(small: bytes, tmp_path: Path) -> None:
    for position in range(len(small)):
        damaged = bytearray(small)
        damaged[position] ^= 1 << position % 8
        check(tmp_path / "x", bytes(damaged), small, position)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_no_overwritten_stretch_goes_unnoticed(
    tmp_path_factory: pytest.TempPathFactory, small: bytes, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(small) - 1))
    stretch = data.draw(st.binary(min_size=1, max_size=60))
    damaged = (small[:position] + stretch + small[position + len(stretch) :])[: len(small)]
    if damaged != small:
        first = next(i for i, (a, b) in enumerate(zip(damaged, small, strict=True)) if a != b)
        check(tmp_path_factory.mktemp("t") / "x", damaged, small, first)


def test_lost_doubled_swapped_and_added_frames_are_noticed(small: bytes, tmp_path: Path) -> None:
    spans = [(begin, end) for begin, end, _ in frames(small)]
    for begin, end in spans[:-1]:
        message = check(tmp_path / "x", small[:begin] + small[end:], small, begin)
        assert "corrupt" in message
    for begin, end in spans:
        message = check(tmp_path / "x", small[:end] + small[begin:], small, end)
        assert "corrupt" in message
    for (begin, middle), (_, end) in itertools.pairwise(spans):
        swapped = small[:begin] + small[middle:end] + small[begin:middle] + small[end:]
        assert "corrupt" in check(tmp_path / "x", swapped, small, begin)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x7fELF and more", "is no memsampd trace"),
        (b"MEMSAMPD\x01\x00", "is no memsampd trace"),
        (b"MEMSAMPT\x63\x00", "format version 99, this memsampd reads version 2"),
        (b"MEMSAMPT\x02\x00", "ends early, after 0 bursts and 0 rows"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        TraceReader(path)


@pytest.mark.parametrize("plain", [b"\x80", b"\x00" * (65 << 20), b"\x91" * 100_000])
def test_valid_frames_of_nonsense_are_refused(tmp_path: Path, plain: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(FORMAT.prelude() + frame(zstandard.compress(plain)))
    with pytest.raises(TraceError, match="is corrupt before byte"):
        TraceReader(path)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace at"):
        TraceReader(tmp_path / "absent")
    with pytest.raises(TraceError, match="Is a directory"):
        TraceReader(tmp_path)


def test_files_are_not_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("dear")
    with pytest.raises(TraceError, match="exists already"):
        TraceWriter(path, HEADER)
    assert path.read_text() == "dear"
    TraceWriter(path, HEADER, overwrite=True).close()
    assert read_trace(path) == ([], [], "")


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """As if the file system had no more room: writes beyond fail (Python ignores SIGXFSZ)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_file_system_leaves_what_was_written_readable(tmp_path: Path) -> None:
    path = tmp_path / "x"
    random = np.random.default_rng(4)
    addresses = random.integers(0, 2**63, 10_000).tolist()
    chunk = chunk_of([(1, address, 8, False) for address in addresses])
    with largest_file(5000), TraceWriter(path, HEADER, block_rows=100) as writer:
        writer.begin_burst(start())
        with pytest.raises(TraceError, match="cannot write"):
            writer.write(chunk)
    assert path.stat().st_size <= 5000
    (burst,), finishes, message = read_trace(path)
    assert len(burst) >= 300
    assert len(burst) % 100 == 0
    assert finishes == []
    assert "ends early" in message


def test_a_file_that_cannot_be_written_at_all(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No space left"):
        TraceWriter(Path("/dev/full"), HEADER, overwrite=True)
    with pytest.raises(TraceError, match="cannot write"):
        TraceWriter(tmp_path / "no" / "x", HEADER)


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    chunk = invented(4)
    writer = TraceWriter(tmp_path / "x", HEADER)
    with pytest.raises(ValueError, match="no burst"):
        writer.write(chunk)
    with pytest.raises(ValueError, match="no burst"):
        writer.end_burst(finish(0))
    writer.begin_burst(start())
    with pytest.raises(ValueError, match="already"):
        writer.begin_burst(start())
    with pytest.raises(ValueError, match="lengths"):
        writer.write(msgspec.structs.replace(chunk, address=chunk.address[:3]))
    writer.write(chunk)
    with pytest.raises(ValueError, match="another number"):
        writer.end_burst(finish(3))
    writer.close()
    found, _, message = read_trace(tmp_path / "x")
    assert (found, "early" in message) == ([rows_of(chunk)], True)


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    def peak_bytes(repeats: int) -> int:
        path = tmp_path / f"{repeats}"
        chunk = invented(50_000)
        tracemalloc.start()
        try:
            write_trace(path, [[chunk] * repeats], block_rows=1 << 15)
            with TraceReader(path) as reader:
                assert sum(len(part) for burst in reader for part in burst) == 50_000 * repeats
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(1)  # what is allocated once
    assert peak_bytes(40) < 1.3 * peak_bytes(4)
