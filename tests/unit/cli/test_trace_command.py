"""``memsampd trace``: its command lines, and its tools on files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tracing_rows import chunk_of, invented, read_trace, rows_of, write_trace

from memsampd.cli.main import main
from memsampd.exporters.trace import TraceReader

MEMSAMPD = [sys.executable, "-m", "memsampd.cli.main"]
FIRST = chunk_of(
    [(0x401000, 0x1000, 8, False), (0x401004, 0x2000, 4, False), (0x401004, 0x2000, 4, True)]
)
SECOND = invented(100)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "x.trace", [[FIRST], [SECOND]])


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ([], "nothing to trace"),
        (["--"], "no program to run"),
        (["-o", "x", "--"], "no program to run"),
        (["1"], "no file to write"),
        (["--", "true"], "no file to write"),
        (["-o", "x", "sqlite3"], "'sqlite3' is no process id"),
        (["sqlite3", "-o", "x"], "'sqlite3' is no process id"),
        (["-o", "x", "1", "2"], "unrecognized arguments: 2"),
        (["-o", "x", "--nonsense", "1"], "unrecognized arguments: --nonsense"),
        (["-o", "x", "1", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["-o", "x", "1", "--bursts", "0"], "no accesses"),
        (["-o", "x", "--accesses", "-1", "1"], "no accesses"),
        (["-o", "x", "--deadline", "0", "--", "true"], "out of range"),
        (["1", "-o", "x", "--accesses", "many"], "invalid int value"),
        (["info"], "required: FILE"),
        (["info", "x", "--bursts", "1"], "unrecognized arguments"),
        (["dump", "x", "--limit", "-1"], "limit of -1"),
        (["convert", "x"], "required: -o/--output"),
        (["convert", "x", "-o", "y", "--to", "wav"], "invalid choice"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    words: list[str], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", *words]) == 2
    shown = capsys.readouterr().err
    assert cause in shown
    assert shown.count("\n") == 1


def test_options_may_stand_before_and_behind_the_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether they arrive shows in which of them is found wrong."""
    path = str(tmp_path / "x")
    for words in (
        ["-o", path, "4194000"],
        ["4194000", "-o", path],
        ["--seed=1", "4194000", f"-o{path}"],
    ):
        assert main(["trace", *words]) == 1
        assert "there is no process 4194000" in capsys.readouterr().err
    assert main(["trace", "--bursts", "0", "4194000", "-o", path]) == 2
    assert not Path(path).exists()


def test_help_names_the_tools(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("PID", "-- CMD", "info", "dump", "convert", "--tid"))
    assert main(["trace", "convert", "--help"]) == 0
    assert "dinero4" in capsys.readouterr().out


def test_info(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "info", str(trace)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:3] == ["sqlite3", "(process", "4242),"]
    assert lines[1] == ["command:", "sqlite3", ":memory:"]
    # burst, thread, time, rows, stores, instructions, ips, lines, end
    assert lines[3] == ["0", "0", "1.500", "3", "33%", "9", "2", "2", "syscall", "(read)"]
    touched = len({address // 64 for _, address, _, _ in rows_of(SECOND)})
    assert lines[4] == f"1 1 1.500 100 25% 300 4 {touched} syscall (read)".split()
    assert lines[5][:4] == ["2", "bursts,", "103", "rows"]
    size = trace.stat().st_size
    assert lines[6] == f"{size} bytes, {size / 103:.2f} a row".split()


def test_dump(trace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "dump", str(trace), "--burst", "0"]) == 0
    first = capfd.readouterr().out
    assert first == (
        "# burst 0: thread 0 after 1.500000 s, 0.750000 s of CPU time\n"
        "sqlite3 4242/0 [0] 401000: L 1000,8\n"
        "sqlite3 4242/0 [0] 401004: L 2000,4\n"
        "sqlite3 4242/0 [0] 401004: S 2000,4\n"
        "# burst 0 ended: syscall (read), 3 rows, 9 instructions, 1 prefetches\n"
    )
    assert main(["trace", "dump", str(trace)]) == 0
    whole = capfd.readouterr().out
    assert whole.startswith(first)
    accesses = [line for line in whole.splitlines() if not line.startswith("#")]
    assert len(accesses) == 103
    assert main(["trace", "dump", str(trace), "--limit", "50"]) == 0
    limited = capfd.readouterr().out.splitlines()
    assert [line for line in limited if not line.startswith("#")] == accesses[:50]
    assert main(["trace", "dump", str(trace), "--burst", "2"]) == 2
    assert "there is no burst 2; the first is 0, there are 2" in capfd.readouterr().err


def test_dump_into_a_reader_that_goes_away(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "x.trace", [[invented(200_000)]])
    read, write = os.pipe()
    done = subprocess.Popen(
        [*MEMSAMPD, "trace", "dump", str(trace)], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    os.read(read, 100)
    os.close(read)
    assert done.communicate()[1] == b""
    assert done.returncode == 128 + signal.SIGPIPE


def test_convert_there_and_back(trace: Path, tmp_path: Path) -> None:
    text, back = tmp_path / "x.lackey", tmp_path / "y.trace"
    assert main(["trace", "convert", str(trace), "-o", str(text), "--to", "lackey"]) == 0
    assert main(["trace", "convert", str(text), "-o", str(back)]) == 0
    with TraceReader(back) as reader:
        assert reader.header.source == "lackey"
    assert read_trace(back)[0] == [rows_of(FIRST) + rows_of(SECOND)]
    one = ["trace", "convert", str(trace), "-o", str(back), "--burst"]
    assert main([*one, "1", "-f"]) == 0
    assert read_trace(back)[0] == [rows_of(SECOND)]
    for number in ("2", "-1"):
        assert main([*one, number, "--force"]) == 2
        assert read_trace(back)[0] == [rows_of(SECOND)]  # as it was
        absent = tmp_path / "absent"
        assert main(["trace", "convert", str(trace), "-o", str(absent), "--burst", number]) == 2
        assert not absent.exists()
    dinero = tmp_path / "x.din"
    assert main(["trace", "convert", str(trace), "-o", str(dinero), "--to", "dinero"]) == 0
    assert dinero.read_text().startswith("0 1000\n0 2000\n1 2000\n")


def test_convert_refuses_to_lose_files(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = trace.read_bytes()
    assert main(["trace", "convert", str(trace), "-f", "-o", str(trace)]) == 2
    assert "would overwrite itself" in capsys.readouterr().err
    other = tmp_path / "other"
    other.write_text("dear")
    assert main(["trace", "convert", str(trace), "-o", str(other)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert (trace.read_bytes(), other.read_text()) == (before, "dear")
    assert main(["trace", "convert", str(other), "-o", str(tmp_path / "y")]) == 1
    assert "no text of valgrind's lackey" in capsys.readouterr().err
    forced = ["trace", "convert", str(trace), "--from", "lackey", "-o", str(tmp_path / "y")]
    assert main(forced) == 1


def test_what_is_whole_of_a_damaged_trace_is_shown_and_converted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "x.trace", [[FIRST], [SECOND]], block_rows=40)
    trace.write_bytes(trace.read_bytes()[:-330])  # the footer, the last finish, and some more
    whole = read_trace(trace)[0]
    assert 0 < len(whole[1]) < 100
    found = rows_of(FIRST) + whole[1]

    assert main(["trace", "info", str(trace)]) == 1
    shown = capfd.readouterr()
    assert f"2 bursts, {len(found)} rows" in shown.out
    assert "ends early, after 2 bursts" in shown.err
    assert shown.err.count("\n") == 1

    assert main(["trace", "dump", str(trace)]) == 1
    shown = capfd.readouterr()
    assert sum(not line.startswith("#") for line in shown.out.splitlines()) == len(found)
    assert "ends early" in shown.err

    saved = tmp_path / "saved.trace"
    assert main(["trace", "convert", str(trace), "-o", str(saved)]) == 1
    bursts, finishes, message = read_trace(saved)
    assert (bursts, message) == (whole, "")
    assert [finish.end for finish in finishes] == ["syscall", "damaged"]

    text = tmp_path / "x.din"
    assert main(["trace", "convert", str(trace), "-o", str(text), "--to", "dinero4"]) == 1
    assert len(text.read_text().splitlines()) == len(found)
    assert "ends early" in capfd.readouterr().err
