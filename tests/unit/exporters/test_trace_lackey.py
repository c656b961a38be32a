"""lackey's text: our quick reader against a slow and obvious one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lackey_text import obvious
from tracing_rows import Row, chunk_of, read_bursts, row, rows, write_bursts

from memsampd.errors import TraceError
from memsampd.exporters.trace import lackey, lettering
from memsampd.exporters.trace.lackey import LackeyReader, LackeyWriter

REMARKS = """\
==4242== Lackey, an example Valgrind tool
==4242== Command: /usr/bin/sqlite3 :memory: select\\ 1,2
==4242==
"""
# From the comments at the top of valgrind's lackey/lk_main.c.
DOCUMENTED = """\
I  0023C790,2
I  0023C792,5
 S BE80199C,4
I  0025242B,3
 L BE801950,4
I  0023D476,7
 M 0025747C,1
I  0023DC20,2
 L 00254962,1
 L BE801FB3,1
I  00252305,1
 L 00254AEB,1
 S 00257998,1
"""
DOCUMENTED_ROWS: list[Row] = [
    (0x23C792, 0xBE80199C, 4, True),
    (0x25242B, 0xBE801950, 4, False),
    (0x23D476, 0x25747C, 1, False),
    (0x23D476, 0x25747C, 1, True),
    (0x23DC20, 0x254962, 1, False),
    (0x23DC20, 0xBE801FB3, 1, False),
    (0x252305, 0x254AEB, 1, False),
    (0x252305, 0x257998, 1, True),
]


def read(path: Path) -> tuple[list[Row], int, str]:
    with LackeyReader(path) as reader:
        (found,), finishes, message = read_bursts(reader)
    return found, finishes[0].instructions if finishes else -1, message


def test_the_documented_example(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(REMARKS + DOCUMENTED)
    assert read(path) == (DOCUMENTED_ROWS, 6, "")
    with LackeyReader(path) as reader:
        assert reader.header.source == "lackey"
        assert reader.header.target.pid == 4242
        assert reader.header.target.command == "sqlite3"
        assert reader.header.command[0] == "/usr/bin/sqlite3"


address = st.integers(0, 2**64 - 1).flatmap(
    lambda number: st.sampled_from(
        [f"{number:x}", f"{number:X}", f"{number:08x}", f"{number:016x}"]
    )
)
reference = st.builds(
    "{}{},{}".format, st.sampled_from(["I  ", " L ", " S ", " M "]), address, st.integers(0, 65535)
)
remark = st.sampled_from(["", "==1== x,1", "--1-- y", "**1** I  1,2", "==1== "])


@settings(deadline=None, max_examples=60)
@given(st.lists(reference | remark, max_size=60), st.integers(25, 300))
def test_it_is_read_as_the_obvious_reader_does(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], read_bytes: int
) -> None:
    """However the blocks fall that it is read by."""
    text = "".join(f"{line}\n" for line in ["I  00001000,1", *lines])
    path = tmp_path_factory.mktemp("l") / "x"
    path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lackey, "_READ_BYTES", read_bytes)
        assert read(path) == (*obvious(text), "")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(rows, max_size=3), max_size=3), st.integers(1, 9))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, bursts: list[list[list[Row]]], slice_rows: int
) -> None:
    """The rows, that is; whatever is known besides has no place in the text."""
    path = tmp_path_factory.mktemp("l") / "x"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lettering, "SLICE_ROWS", slice_rows)
        write_bursts(LackeyWriter(path), [list(map(chunk_of, burst)) for burst in bursts])
    expected = [row for burst in bursts for part in burst for row in part]
    assert obvious(path.read_text())[0] == expected
    if expected:
        assert read(path)[::2] == (expected, "")


def test_how_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x"
    first = chunk_of(DOCUMENTED_ROWS[:3])
    second = chunk_of([*DOCUMENTED_ROWS[3:6], (0x1FFF000778, 2**47, 512, True)])
    write_bursts(LackeyWriter(path), [[first, second], [first]])
    assert path.read_text() == (
        "I  0023c792,1\n S be80199c,4\n"
        "I  0025242b,1\n L be801950,4\n"
        "I  0023d476,1\n M 0025747c,1\n"
        "I  0023dc20,1\n L 00254962,1\n L be801fb3,1\n"
        "I  1fff000778,1\n S 800000000000,512\n"
        "I  0023c792,1\n S be80199c,4\n"
        "I  0025242b,1\n L be801950,4\n"
        "I  0023d476,1\n L 0025747c,1\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "hello, world",
        " L 1000",
        " L ,8",
        " L 1000,",
        " L 10g0,8",
        " L 1000,8a",
        " L 1000,8,8",
        " L 1000 ,8",
        " L  1000,8",
        " L 1000,65536",
        " L 1000,99999999999999999999999",
        " L 11112222333344445,8",
        " X 1000,8",
        "L 1000,8",
        "I 1000,8",
        "=1== no remark",
        "x",
    ],
)
def test_other_lines_are_refused_by_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(REMARKS + DOCUMENTED + f"{line}\n L 00001000,8\n")
    found, _, message = read(path)
    assert found == DOCUMENTED_ROWS
    assert "line 17 of" in message
    assert "--log-file" in message


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    text = REMARKS + DOCUMENTED
    for length in range(text.index("I  ") + 14, len(text)):
        path.write_text(text[:length])
        found, _, message = read(path)
        assert found == obvious(text[:length].rpartition("\n")[0])[0]
        assert ("ends inside a line" in message) == (text[length - 1] != "\n")


@pytest.mark.parametrize("content", ["", "hello\n", REMARKS])
def test_what_is_no_text_of_lackey_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(content)
    with pytest.raises(TraceError, match="no text of valgrind's lackey"):
        LackeyReader(path)


@settings(deadline=None, max_examples=30)
@given(st.lists(row, min_size=1, max_size=5))
def test_what_the_caller_does_with_his_arrays_later_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[Row]
) -> None:
    path = tmp_path_factory.mktemp("l") / "x"
    writer = LackeyWriter(path)
    chunk = chunk_of(wanted)
    writer.write(chunk)
    chunk.address[:] = 0
    writer.end_burst(None)  # type: ignore[arg-type]
    writer.close()
    assert obvious(path.read_text())[0] == wanted
