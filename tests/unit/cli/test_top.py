"""The rows of ``memsampd top``, and ``--once``."""

from __future__ import annotations

import json

import pytest
from documents_server import served
from invented import make_snapshot
from msgspec.structs import replace

from memsampd.cli.main import main
from memsampd.cli.top_rows import (
    Column,
    Document,
    History,
    Row,
    columns_of,
    fitted,
    levels_of,
    rows_of,
    sorted_rows,
    table_lines,
)
from memsampd.exporters.documents import target_document
from memsampd.exporters.snapshot import Snapshot

BUSY = make_snapshot(3, pid=11)
IDLE = replace(make_snapshot(2, pid=3333), idle_seconds=9.0)
ENDED = make_snapshot(1, pid=5, alive=False)


def named(snapshot: Snapshot, command: str) -> Snapshot:
    return replace(snapshot, target=replace(snapshot.target, command=command))


def shown(*snapshots: Snapshot, now: bool = False) -> tuple[list[Column], list[Row]]:
    targets: list[Document] = [target_document(snapshot) for snapshot in snapshots]
    history = History()
    history.add(targets)
    levels = levels_of(targets)
    return columns_of(levels), rows_of(targets, levels, history, now)


def test_the_table_fits_into_80_columns() -> None:
    columns, rows = shown(named(BUSY, "a-name-that-is-far-too-long"), IDLE, ENDED)
    lines = table_lines(columns, rows)
    assert max(map(len, lines)) < 80
    assert lines[0].split()[:3] == ["PID", "COMMAND", "PHASE"]
    assert "a-name-that…" in lines[1]


def test_idle_and_ended_targets_say_so() -> None:
    _, rows = shown(BUSY, IDLE, ENDED)
    assert [row.cells[2] for row in rows] == ["1", "idle", "ended"]
    let_go = {**target_document(replace(ENDED, is_let_go=True)), "attached": False}
    (row,) = rows_of([let_go], [], History(), now=False)
    assert row.cells[2] == "let go"


def test_a_target_that_is_not_observed_says_why() -> None:
    waiting = {"target": "7-1", "pid": 7, "command": "nginx", "state": "failed"}
    bare = {**waiting, "rule": "r", "reason": "somebody traces it", "remedy": "stop that"}
    targets: list[Document] = [bare, target_document(BUSY)]
    history = History()
    history.add(targets)
    levels = levels_of(targets)
    rows = rows_of(targets, levels, history, now=False)
    assert rows[0].cells[:3] == ("7", "nginx", "failed")
    assert rows[0].details == ("failed: somebody traces it; stop that",)
    assert [row.target for row in sorted_rows(rows, 3, False, False)][-1] == "7-1"
    assert max(map(len, table_lines(columns_of(levels), rows))) < 80


def test_what_is_not_known_is_said_and_explained() -> None:
    _, (row,) = shown(BUSY)
    assert row.cells[-1] == "25%"
    assert any("no burst has seen the code" in line for line in row.details)


def test_trends_are_sorted_by_what_they_show() -> None:
    """The present phase, whatever the other columns show."""
    for now in (False, True):
        columns, (row,) = shown(BUSY, now=now)
        trend = [column.key for column in columns].index("t")
        assert row.values[trend] == target_document(BUSY)["caches_now"][-1]["miss_ratio"]


def test_a_phase_without_a_curve_is_a_question_mark() -> None:
    _, (row,) = shown(replace(BUSY, phase=2), now=True)
    assert row.cells[3:7] == ("?", "?", "?", "?")


def test_escape_sequences_in_names_do_not_reach_the_terminal() -> None:
    _, (row,) = shown(named(BUSY, "\x1b[2Jx"))
    assert "\x1b" not in row.cells[1]


def row(name: str, value: float | str | None) -> Row:
    return Row(name, (name,), (value,), ())


def test_figures_fall_text_rises_and_unknown_is_last() -> None:
    rows = [row("a", 1.0), row("b", None), row("c", 3.0)]
    assert [each.target for each in sorted_rows(rows, 0, False, False)] == ["c", "a", "b"]
    assert [each.target for each in sorted_rows(rows, 0, False, True)] == ["a", "c", "b"]
    words = [row("a", "z"), row("b", "y")]
    assert [each.target for each in sorted_rows(words, 0, True, False)] == ["b", "a"]
    assert [each.target for each in sorted_rows(words, 0, True, True)] == ["a", "b"]


def test_sparklines_keep_the_last_looks_of_living_targets() -> None:
    history = History()
    target = dict(target_document(BUSY))
    for ratio in (0.1, 0.2, 0.4):
        target["caches_now"] = [{"miss_ratio": ratio}]
        history.add([target])
    assert history.spark(target["target"]).strip() == "▃▅█"
    for _ in range(20):
        history.add([target])
    assert len(history.spark(target["target"])) == 8
    history.add([])
    assert history.spark(target["target"]).strip() == ""


def test_cells_are_cut_visibly() -> None:
    assert fitted("12345", Column("x", 4, "x")) == "123…"
    assert fitted("1", Column("x", 3, "x")) == "  1"
    assert fitted("a", Column("x", 3, "x", is_text=True)) == "a  "


def test_once_prints_the_table_or_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    with served([BUSY, IDLE]) as url:
        assert main(["top", "--once", "--url", url, "--sort", "p"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["PID", "3333", "11"]
        assert main(["top", "--once", "--json", "--url", url]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [target["pid"] for target in document["targets"]] == [11, 3333]


def test_no_targets_at_all_are_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    with served([]) as url:
        assert main(["top", "--once", "--url", url]) == 0
    assert capsys.readouterr().out.startswith("    PID COMMAND")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--json"], "--json without --once"),
        (["--once", "--socket", "/nowhere/x"], "no daemon serves /nowhere/x"),
        (["--url", "http://127.0.0.1:1"], "top needs a terminal"),
        (["--once", "--url", "http://127.0.0.1:1"], "Connection refused"),
        (["--once", "--url", "x", "--pid", "1"], "both --url and --pid"),
        (["--once", "--sort", "z"], "no column 'z'"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", *arguments]) != 0
    assert said in capsys.readouterr().err
