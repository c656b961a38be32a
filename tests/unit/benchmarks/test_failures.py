"""A program of which nothing came is a missed goal, by its name and with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import long_distances
import model_error
import replica_speed
import store
import write_backs
from long_distances import Distance, loops_page
from programs.workload import Launch, Workload

ENDS = Workload("ends", "", "", (), ("true",), lambda folder: Launch(("true",)))
GOES_ON = Workload("goes-on", "", "", (), ("sh",), lambda folder: Launch(("sh", "-c", _LOOP)))
_LOOP = "while :; do :; done"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue is of these two."""

    def find(names: Sequence[str]) -> list[Workload]:
        return [each for each in (ENDS, GOES_ON) if each.name in names]

    monkeypatch.setattr(store, "find", find)


def test_a_program_that_failed_has_no_speed() -> None:
    results, problems = replica_speed.measure_all([ENDS], 1, 0.005, 0.0)
    assert results == {}
    assert [each.partition(" ended at once")[0] for each in problems] == ["ends: ends"]


def test_a_program_on_which_memsampd_failed_is_a_miss_of_the_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "MEMSAMPD", "false")
    assert store.main(["--programs", "goes-on", "--seconds", "1"]) == 1
    assert "goal missed: goes-on: goes-on" in capsys.readouterr().out


def test_what_was_not_recorded_is_a_miss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--only", "programs", "--programs", "sorting", "--judge"]
    assert long_distances.main([*asked, str(tmp_path / "nonesuch")]) == 1
    assert "goal missed: sorting: no recording" in capsys.readouterr().out


def test_a_loop_whose_lines_were_not_hit_twice_is_a_miss() -> None:
    seen = Distance.of(99_999, 1e8, [0.001, 0.0011, 0.0009], 6)
    near = Distance.of(999, 1e8, [0.001], 2)  # shorter ones may be off
    assert seen.error == pytest.approx(0.001, rel=1e-3)
    assert long_distances.missed_goals([seen, near], []) == []
    nothing = Distance.of(99_999, 1e8, [], 3)
    far = Distance.of(99_999, 1e8, [0.002], 2)
    assert long_distances.missed_goals([nothing, far], []) == [
        "distance 99,999: no pause seen",
        "distance 99,999: +100 %",
    ]
    assert "| 99,999 |  |  | 0 | 3 |" in loops_page([nothing], "Now").markdown()


def test_a_file_that_is_no_trace_is_a_miss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_bytes(b"none")
    assert write_backs.main([str(tmp_path / "x")]) == 1
    assert f"goal missed: {tmp_path / 'x'}: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        write_backs.main([])


def test_a_program_without_a_burst_has_no_error_of_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model_error, "traced_bursts", lambda name, seconds: iter(()))
    assert model_error.main(["--programs", "fft"]) == 1
    assert "goal missed: fft: no burst" in capsys.readouterr().out
