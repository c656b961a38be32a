"""Costs by turns of one process: which pieces of work count, and that each kind of work goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import cost_turns
from cost_turns import Piece, Span, Worker, program_rows, server_rows, server_turn, turn
from targets.comparing import ALONE, Figures, Round, missed
from targets.endless import WORK
from targets.launching import child
from targets.servers import SERVERS, Start

FOLDER = Path(cost_turns.__file__).parent
TELLS = """
for line in ("1.5 0.2 0.4", "2.0 0.3 0.4", "3.0 0.5 0.9"):
    print(line, flush=True)
input()
"""


def worker_of(process: subprocess.Popen[str], pieces: int) -> Worker:
    worker = Worker(process)
    while len(worker._pieces) < pieces:
        assert process.poll() is None
        time.sleep(0.01)
    return worker


def test_pieces_count_that_were_begun_and_ended_in_a_turn() -> None:
    pipe = subprocess.PIPE
    with child((sys.executable, "-c", TELLS), stdin=pipe, stdout=pipe) as process:
        worker = worker_of(process, 3)
        assert worker.between(1.55, 2.9) == [Piece(2.0, 0.3, 0.4)]
        assert worker.between(0.0, 9.0) == []  # those of a turn before are gone


def test_a_program_that_ended_is_told() -> None:
    with child((sys.executable, "-c", ""), stdout=subprocess.PIPE) as process:
        worker = Worker(process)
        process.wait()
        with pytest.raises(SystemExit, match="status 0"):
            worker.between(0.0, 9.0)


def test_a_program_that_ends_no_piece_in_a_turn_took_longer_than_that() -> None:
    pipe = subprocess.PIPE
    with child((sys.executable, "-c", "input()"), stdin=pipe, stdout=pipe) as process:
        figures = turn(Worker(process), None, Span(0.0, 0.2))
    assert figures == {"wall_seconds": 0.2, "pieces": 0}
    rounds: list[Round] = [{ALONE: {"wall_seconds": 0.1}, "x": figures}]
    assert "wall time of a piece, ms" in missed(program_rows(is_busy=False), rounds, "x")


def test_bursts_are_wanted_unless_options_say_otherwise() -> None:
    rounds: list[Round] = [{ALONE: {}, "x": {"bursts": 0}}]
    for rows in (program_rows, server_rows):
        assert "bursts" in missed(rows(is_busy=False), rounds, "x")
        told = missed(rows(is_busy=False, given=("--schedule", "none")), rounds, "x")
        assert not any(each.startswith("bursts") for each in told)


@pytest.mark.parametrize("name", WORK)
def test_each_kind_of_work_tells_what_its_pieces_took(name: str) -> None:
    command = (sys.executable, "-m", "targets.endless", name)
    with child(command, stdout=subprocess.PIPE, cwd=FOLDER) as process:
        worker = worker_of(process, 1)
        figures: Figures = {}
        seconds = 0.1
        while not figures.get("pieces"):
            seconds *= 2
            figures = turn(worker, None, Span(0.0, seconds))
        assert (figures["pieces"] or 0) >= 1
        assert 0 < (figures["cpu_seconds"] or 0) <= 1.1 * (figures["wall_seconds"] or 0)


@pytest.mark.usefixtures("perf_events")
@pytest.mark.parametrize("memsampd", [None, Path(sys.executable).with_name("memsampd")])
def test_a_server_tells_what_its_requests_took(memsampd: Path | None) -> None:
    nginx = next(each for each in SERVERS if each.name == "nginx")
    if why := nginx.lacks():
        pytest.skip(why)
    with nginx.started(Start(is_small=True)) as served:
        figures = server_turn(served, memsampd, Span(1.0, 1.0), ("--schedule", "none"))
    assert (figures["rate"] or 0) > 0
    assert (figures["cpu_a_request"] or 0) > 0
    assert ("own_share" in figures) == (memsampd is not None)
