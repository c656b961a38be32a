"""The cost benchmark: what it reads, what it compares, and its own small programs."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import cost
import server_answers
from reference.documents import made_text
from targets.agent import Answer, Observation, _Follower, first_seconds, observing, parse_answer
from targets.comparing import (
    ALONE,
    Figures,
    Kind,
    Round,
    Row,
    gains_of,
    judge,
    missed,
    noise_of,
    table,
)
from targets.launching import (
    LaunchError,
    busy_seconds,
    child,
    compiled_c,
    launched,
    parse_usage,
)
from targets.options import installations
from targets.programs import PROGRAMS, Program
from targets.rows import COLUMNS, page, program_rows, server_rows
from targets.servers import (
    SERVERS,
    Client,
    Load,
    asking,
    lacking_packages,
    packages,
    parse_load,
)

WALL = Row("wall", "wall time, s", kind=Kind.GAIN, limit=0.02)


def rounds_from(name: str, alone: list[float], seen: list[float]) -> list[Round]:
    return [{ALONE: {name: a}, "x": {name: s}} for a, s in zip(alone, seen, strict=True)]


def test_usage_is_read() -> None:
    usage = parse_usage("end -9 2000000000 1500000 250000 77 1 2048 1\n")
    assert (usage.status, usage.minor_faults, usage.major_faults, usage.left) == (-9, 77, 1, True)
    assert usage.wall_seconds == pytest.approx(2.0)
    assert usage.cpu_seconds == pytest.approx(1.5)
    assert usage.children_cpu_seconds == pytest.approx(0.25)
    assert usage.peak_bytes == 2 << 20
    with pytest.raises(LaunchError):
        parse_usage("")


def test_load_is_read() -> None:
    load = parse_load("500 2000000000 3 1000 2000 3000 4000 240\n")
    assert load.rate == pytest.approx(250)
    assert load.p999_seconds == pytest.approx(3e-6)
    assert load.worst_seconds == pytest.approx(4e-6)
    assert (load.failed, load.slowest_second) == (3, 240)
    with pytest.raises(LaunchError):
        parse_load("load: connecting: refused")


METRICS = """
# HELP memsampd_miss_low_ratio whatever
memsampd_build_info{version="0.1.0"} 1.0
memsampd_cache_size_bytes{command="a \\"b\\"",level="L1d",pid="7"} 49152.0
memsampd_cache_size_bytes{command="x",level="L2",pid="7"} 2.097152e+06
memsampd_miss_low_ratio{command="x",pid="7",policy="lru",size_bytes="49152"} 0.25
memsampd_miss_high_ratio{command="x",pid="7",policy="lru",size_bytes="49152"} 0.5
memsampd_miss_high_ratio{command="x",pid="7",policy="random",size_bytes="49152"} 0.9
memsampd_bursts_total{command="x",end="full",pid="7"} 3.0
memsampd_bursts_total{command="x",end="exit",pid="7"} 1.0
memsampd_phase_sampled_accesses{command="x",phase="0",pid="7"} 1000.0
memsampd_phase_sampled_accesses{command="x",phase="other",pid="7"} 1.0
memsampd_capture_errors_total{command="x",pid="7",reason="too-long"} 2.0
memsampd_target_cpu_seconds_total{command="x",pid="7"} 12.5
memsampd_own_cpu_seconds_total{command="x",pid="7"} 1.0
memsampd_target_hold_seconds_total{command="x",pid="7"} 0.0625
memsampd_target_hit_seconds_total{command="x",pid="7"} 0.125
memsampd_target_sampling_seconds_total{command="x",pid="7"} 0.25
memsampd_target_taken_cpu_seconds_total{command="x",pid="7"} 0.5
"""


def test_metrics_are_read() -> None:
    answer = parse_answer(METRICS, 3.0)
    assert answer.bands == {"L1d": (0.25, 0.5)}  # nothing is known at L2
    assert (answer.width("L1d"), answer.width("L2")) == (0.25, None)
    assert (answer.bursts, answer.sampled_accesses) == (4, 1001)
    assert answer.errors == {"too-long": 2}
    assert answer.charged_share == 0.9375 / 12.5
    assert (answer.target_cpu_seconds, answer.own_cpu_seconds) == (12.5, 1.0)


def test_metrics_that_a_version_lacks_are_unknown_or_nothing() -> None:
    answer = parse_answer('memsampd_target_cpu_seconds_total{pid="7"} 1.0\n')
    assert answer == Answer(0.0, charged_share=0.0, target_cpu_seconds=1.0)
    assert parse_answer("") == Answer(0.0)


def banded(seconds: float, width: float, own: float = 0.0) -> Answer:
    band = (0.0, width)
    return Answer(seconds, {"L1d": band, "L2": band}, 0.0, 10 * seconds, own)


def test_a_band_that_leaves_all_open_is_no_number() -> None:
    assert first_seconds([Answer(0.5), banded(1, 1.0), banded(2, 0.4), banded(3, 0.1)]) == 2
    assert first_seconds([banded(1, 1.0)]) is None


def test_bands_are_narrow_from_when_they_stay_so() -> None:
    answers = [banded(1, 0.01), banded(2, 0.5), banded(3, 0.02), banded(4, 0.015)]
    assert server_answers.settled_seconds(answers) == 3
    assert server_answers.settled_seconds(answers[:2]) is None
    assert server_answers.settled_seconds([]) is None
    one_level = replace(banded(1, 0.0), bands={"L1d": (0.0, 0.0)})
    assert server_answers.settled_seconds([one_level]) is None


def test_answers_that_come_late_miss() -> None:
    good = server_answers.Outcome(1.0, 12.0, banded(30, 0.01), 1.0, "", 34.0)
    never = replace(good, first_seconds=None, settled_seconds=None)
    missed_by = server_answers.missed
    assert missed_by([good]) == []
    assert missed_by([never]) == ["first number", "bands"]
    assert missed_by([replace(good, settled_seconds=31.0)]) == ["bands"]
    assert missed_by([never, good, good]) == []
    assert missed_by([never, never, good]) == ["first number", "bands"]
    early = replace(never, observed_seconds=10.0)  # for bands within 30 s
    assert missed_by([early]) == ["first number"]
    assert "MISSED: bands" in server_answers.line_of("x", "y", replace(good, settled_seconds=None))


def test_shares_without_the_first_seconds() -> None:
    seen = [banded(5, 0.1, 2.0), banded(10, 0.1, 3.0), banded(20, 0.1, 8.0)]
    shares = (0.04, 0.03, 0.02)  # charged, of all since the attach
    answers = [replace(each, charged_share=share) for each, share in zip(seen, shares, strict=True)]
    later = Observation(answers).shares_after(10.0)
    assert later == pytest.approx(((4.0 - 3.0) / 100.0, 5.0 / 100.0))
    assert Observation(answers).shares_after(0.0) == pytest.approx((0.02, 8.0 / 200.0))
    assert Observation(answers[:1]).shares_after(10.0) == (None, None)
    assert Observation(answers[-1:]).shares_after(10.0) == (None, None)


def test_gains_are_taken_in_pairs() -> None:
    rounds = rounds_from("wall", [1.0, 10.0, 100.0], [1.1, 11.0, 150.0])
    assert gains_of(rounds, "x", "wall") == pytest.approx([0.1, 0.1, 0.5])
    assert judge(WALL, rounds, "x").effect == pytest.approx(0.1)
    assert gains_of(rounds, "y", "wall") == []


def test_noise_is_that_of_a_median() -> None:
    assert noise_of([1.0, 2.0]) is None
    assert noise_of([1.0] * 9) == 0.0
    few, many = noise_of([0.0, 1.0, 2.0, 3.0] * 2), noise_of([0.0, 1.0, 2.0, 3.0] * 8)
    assert few == pytest.approx(2 * many if many else None)


@pytest.mark.parametrize(
    ("row", "alone", "seen", "is_met"),
    [
        (WALL, [1.0, 1.0], [1.015, 1.02], True),
        (WALL, [1.0, 1.0], [1.03, 1.03], False),
        (Row("f", "", kind=Kind.LOSS, limit=0.02), [100.0], [98.5], True),
        (Row("f", "", kind=Kind.LOSS, limit=0.02), [100.0], [97.0], False),
        (Row("f", "", kind=Kind.EXCESS, limit=0.005), [0.001], [0.0055], True),
        (Row("f", "", kind=Kind.EXCESS, limit=0.005), [0.001], [0.007], False),
        (Row("f", "", kind=Kind.NEVER_MORE, slack=2), [100, 110], [102, 110], True),
        (Row("f", "", kind=Kind.NEVER_MORE, slack=2), [100, 110], [111, 112], False),
        # One round in which much was used alone excuses no others.
        (Row("f", "", kind=Kind.NEVER_MORE, slack=2), [100, 100, 130], [109, 109, 109], False),
        (Row("f", "", kind=Kind.NEVER_MORE, slack=2), [100, 110], [113, 114], False),
        (Row("f", "", kind=Kind.NEVER_MORE, limit=0.1), [100.0], [109.0], True),
        (Row("f", "", kind=Kind.NEVER_MORE), [0.0], [1.0], False),
        (Row("f", "", kind=Kind.AT_MOST, limit=0.05), [0.0], [0.06], False),
        (Row("f", "", kind=Kind.AT_LEAST, limit=1), [0.0, 0.0], [1.0, 1.0], True),
        (Row("f", "", kind=Kind.AT_LEAST, limit=1), [0.0, 0.0], [0.0, 1.0], False),
        (Row("f", "", kind=Kind.SHOWN), [1.0], [99.0], None),
    ],
)
def test_goals(row: Row, alone: list[float], seen: list[float], is_met: bool | None) -> None:
    rounds = rounds_from(row.name, alone, seen)
    assert judge(row, rounds, "x").is_met is is_met
    assert judge(row, rounds, ALONE).is_met is None
    assert missed([replace(row, title="it")], rounds, "x") == (["it"] if is_met is False else [])


@pytest.mark.parametrize("kind", Kind)
def test_what_was_not_measured_is_missed_if_it_is_judged(kind: Kind) -> None:
    row = Row("f", "  it", kind=kind, limit=1, cost="wall")
    told = [] if kind is Kind.SHOWN else ["it: not measured"]
    assert missed([row], [], "x") == told
    assert missed([row], [{ALONE: {"f": 1.0, "wall": 1.0}, "x": {"wall": 1.0}}], "x") == told


@pytest.mark.parametrize(
    ("walls", "charged", "is_met"),
    [
        ([1.10, 1.10, 1.10], 0.08, True),
        ([1.10, 1.10, 1.10], 0.05, False),
        ([1.10, 1.10, 1.10], 0.16, False),
        ([0.90, 1.01, 1.10], 0.05, None),  # nothing stands out
        ([1.10, 1.10], 0.05, None),  # too few to tell
    ],
)
def test_what_is_charged_is_what_was_lost(
    walls: list[float], charged: float, is_met: bool | None
) -> None:
    row = Row("charged", "", kind=Kind.CHARGED, limit=1.5, cost="wall")
    rounds: list[Round] = [
        {ALONE: {"wall": 1.0}, "x": {"wall": wall, "charged": charged}} for wall in walls
    ]
    assert judge(row, rounds, "x").is_met is is_met
    assert missed([row], rounds, "x") == ([""] if is_met is False else [])


def test_a_table_shows_what_there_is() -> None:
    rounds = rounds_from("wall", [1.0, 1.0, 1.0], [1.5, 1.5, 1.5])
    rows = [WALL, Row("absent", "absent")]
    head, line = table(rows, rounds, ["x"])
    assert head.split() == ["goal", "alone", "x"]
    assert "1.50 (+50.0 ± 0.0 %) MISSED" in line


def test_each_round_begins_with_another() -> None:
    order = []

    def run(memsampd: Path | None) -> tuple[dict[str, float | None], dict[str, object]]:
        order.append(memsampd)
        return {"n": len(order)}, {"of": memsampd}

    path = Path("/x")
    rounds = [cost.one_round(run, {"memsampd": path}, number) for number in range(3)]
    assert order == [None, path, path, None, None, path]
    assert rounds[1]["figures"] == {"memsampd": {"n": 3}, ALONE: {"n": 4}}
    assert rounds[1]["details"] == {"memsampd": {"of": path}, ALONE: {"of": None}}


def test_a_run_goes_on_from_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[tuple[str, int]] = []

    def measure(target: Program, _: object, number: int, quick: bool) -> dict[str, object]:
        measured.append((target.name, number))
        alone = dict.fromkeys((row.name for row in program_rows(is_busy=False)), 1.0)
        alone |= {"wall_seconds": 2.0, "own_share": 0.01}
        seen = alone | {"wall_seconds": 2.0 + number}
        return {"figures": {ALONE: alone, "memsampd": seen}, "details": {}}

    monkeypatch.setattr(cost, "measure", measure)
    monkeypatch.setattr(cost, "lacking", lambda *_: "")
    kept = ["--json", str(tmp_path / "kept.json"), "--resume"]
    assert cost.main([*kept, "--rounds", "1", "--only", "xz"]) == 0
    assert cost.main([*kept, "--rounds", "2", "--only", "xz", "solver"]) == 1
    assert measured == [("xz", 0), ("solver", 0), ("xz", 1), ("solver", 1)]
    capsys.readouterr()
    assert cost.main([*kept, "--rounds", "0", "--only", "xz"]) == 1
    assert "2.50 (+25.0 %) MISSED" in capsys.readouterr().out
    assert len(measured) == 4
    document = tmp_path / "cost.md"
    told = ["--rounds", "0", "--only", "xz", "--markdown", str(document)]
    assert cost.main([*kept, *told]) == 1
    assert "| xz | 2 | **+25.0** |" in document.read_text()
    assert f"Measured {made_text()}." in document.read_text()
    assert cost.main([*kept, "--rounds", "0", "--only", "sqlite3"]) == 1  # not measured
    with pytest.raises(SystemExit, match="'busy': False"):
        cost.main([*kept, "--busy", "--rounds", "0"])


def test_a_document_has_a_line_for_each_target() -> None:
    alone: Figures = {"rate": 100.0, "peak_bytes": 1e6, "fast_p999_seconds": 0.001}
    seen = alone | {"rate": 99.0, "fast_p999_seconds": 0.0075, "own_share": 0.04}
    rounds: list[Round] = [{ALONE: alone, "memsampd": seen}] * 3
    head, _, server, nothing = page(
        [("a", server_rows(is_busy=False), rounds), ("b", program_rows(is_busy=False), [])]
    ).splitlines()
    told = dict(zip(head.split("|"), server.split("|"), strict=True))
    found = {title.strip(): cell.strip() for title, cell in told.items()}
    assert found["wall time, requests, %"] == "-1.0 ± 0.0"
    assert found["p99.9, ms"] == "**+6.500 ± 0.000**"  # misses
    assert (found["own CPU, %"], found["CPU time, %"], found["rounds"]) == ("4.00", "", "3")
    assert nothing == "| b | 0 |" + "  |" * len(COLUMNS)


def test_targets_are_told_with_the_memory_that_they_have() -> None:
    (huge,) = (each for each in PROGRAMS if each.name == server_answers.HUGE)
    assert (huge.told(False), huge.told(True)) == ("the same over 12 GiB", "the same over 512 MiB")
    titles = [server_answers.title_of(server_answers.HUGE, quick) for quick in (False, True)]
    assert titles == ["random12", "random12 (512 MiB)"]
    assert server_answers.title_of("redis", True) == "redis"


def test_targets_are_found_by_name() -> None:
    assert [each.name for each in cost.find(["redis", "xz"])] == ["redis", "xz"]
    assert {"postgres", "nginx", "random12"} < {each.name for each in cost.find([])}
    assert set(server_answers.NAMES) == {*(each.name for each in SERVERS), server_answers.HUGE}


@pytest.mark.parametrize("benchmark", [cost, server_answers])
def test_an_unknown_name_is_told_the_known_ones(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["--only", "nonesuch"])
    assert ended.value.code == 2
    assert "'redis'" in capsys.readouterr().err
    args = benchmark.parser().parse_args(["--only", "redis", "--quick", "--other", "/x"])
    assert (args.only, args.quick) == (["redis"], True)
    assert installations(args)["other"] == Path("/x")


# An agent that is told to end, and one that ends by itself; both say when they are ready.
TOLD = "trap 'exit {status}' INT; : > {ready}; while :; do sleep 0.01; done"
ITSELF = "trap '' INT; : > {ready}; exit {status}"


@pytest.mark.parametrize(
    ("text", "status", "is_failure"),
    [(TOLD, 0, False), (TOLD, 130, False), (TOLD, 1, True), (ITSELF, 0, False), (ITSELF, 3, True)],
)
def test_an_agent_ends_as_told_or_fails(
    text: str, status: int, is_failure: bool, tmp_path: Path
) -> None:
    agent, ready = tmp_path / "agent", tmp_path / "ready"
    agent.write_text("#!/bin/sh\n" + text.format(status=status, ready=ready))
    agent.chmod(0o755)
    with (
        pytest.raises(LaunchError) if is_failure else nullcontext(),
        observing(agent, os.getpid()),
    ):
        while not ready.exists():
            time.sleep(0.01)


def test_all_cpu_time_is_that_of_some_program() -> None:
    """What is busy is no less than what we know of, nor more than the CPUs have."""

    def agrees() -> bool:
        wall, busy, own = time.monotonic(), busy_seconds(), time.process_time()
        for _ in range(300):
            time.sleep(0.001)
            sum(range(20_000))
        own_used, busy_used = time.process_time() - own, busy_seconds() - busy
        most = (time.monotonic() - wall) * (os.cpu_count() or 1)
        return own_used - 0.05 <= busy_used <= most + 0.05

    # Two clocks are read behind one another, and a CPU may be taken away between.
    assert any(agrees() for _ in range(20))


def test_what_a_server_lacks_is_named_with_its_remedy() -> None:
    absent = replace(SERVERS[0], packages=("some-package",), programs=("sh", "no-such-program"))
    assert absent.lacks() == "not installed: apt-get install some-package (no-such-program)"
    assert replace(absent, programs=("sh",)).lacks() == ""
    assert set(lacking_packages()) <= set(packages())


# Waits for a child; leaves another behind that computes and ends.
FAMILY = """
import os, subprocess, sys
grown = bytearray(b"x" * (64 << 20))
burn = "for i in range(2000000): pass"
subprocess.run([sys.executable, "-S", "-c", burn])
subprocess.Popen([sys.executable, "-S", "-c", burn])
os._exit(3)
"""


def test_a_program_is_measured_with_its_family() -> None:
    with launched((sys.executable, "-S", "-c", FAMILY), {}) as process:
        assert process.pid > 0
        usage = process.wait()
    assert usage.status == 3
    assert not usage.left
    assert 0 < usage.children_cpu_seconds < usage.cpu_seconds
    assert 64 << 20 < usage.peak_bytes < 256 << 20


class Redis(socketserver.StreamRequestHandler):
    """Answers as redis does; every tenth time with an error."""

    def handle(self) -> None:
        asked = 0
        while line := self.rfile.readline():
            words = [self.rfile.readline() for _ in range(2 * int(line[1:]))][1::2]
            asked += 1
            value = b"$5\r\nhello\r\n" if words[0] == b"GET\r\n" else b"+OK\r\n"
            self.wfile.write(b"-ERR no\r\n" if asked % 10 == 0 else value)


class Http(socketserver.StreamRequestHandler):
    """Answers in two pieces, and closes the connection after each hundredth request."""

    disable_nagle_algorithm = True  # else the second piece waits for 40 ms

    def handle(self) -> None:
        for _ in range(100):
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                pass
            if not line:
                return
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n")
            self.wfile.write(b"\r\nhello")


def ask(
    protocol: str,
    handler: type[socketserver.BaseRequestHandler],
    rate: float,
    at_least: int = 1,
) -> list[Load]:
    """Turns of a client, until so many requests have been answered."""

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with asking(protocol, server.server_address[1], 2, 100) as client:
            give_up = time.monotonic() + 100
            loads = [client.ask(0.3, rate)]
            while sum(load.requests for load in loads) < at_least:
                assert time.monotonic() < give_up
                loads.append(client.ask(0.3, rate))
        server.shutdown()
    return loads


class BrokenOff(socketserver.StreamRequestHandler):
    """Ends in the midst of an answer."""

    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello")


def test_an_answer_that_breaks_off_is_none() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), BrokenOff) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        follower = _Follower([], server.server_address[1], time.monotonic(), 1.0)
        follower._ask()
        server.shutdown()
    assert follower._answers == []


def test_a_client_asks_redis() -> None:
    *_, load = ask("redis", Redis, 0)
    assert load.failed == pytest.approx(load.requests / 10, abs=3)
    assert load.p50_seconds <= load.p99_seconds <= load.p999_seconds <= load.worst_seconds


def test_a_client_keeps_to_a_rate() -> None:
    *_, load = ask("redis", Redis, 100)
    assert load.requests <= 31


def test_a_client_goes_on_when_a_connection_is_closed() -> None:
    loads = ask("http", Http, 0, at_least=1000)
    # One is lost at most when a connection is closed.
    assert sum(load.failed for load in loads) <= sum(load.requests for load in loads) / 100 + 2


def test_a_client_without_a_server_says_so() -> None:
    done = subprocess.run(
        [compiled_c("load"), "redis", "1", "1", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "connecting" in done.stderr


def test_a_client_that_died_is_no_load() -> None:
    pipe = subprocess.PIPE
    with child(("sh", "-c", "read line"), stdin=pipe, stdout=pipe) as process:
        with pytest.raises(LaunchError):
            Client(process).ask(0.1)
        process.wait()
        with pytest.raises(LaunchError):
            Client(process).ask(0.1)
