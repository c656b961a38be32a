"""What a session learns is kept, and known to the next one; the process is a real one."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from invented import burst_record, make_snapshot, window_record
from msgspec.structs import replace
from tracees import running

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.store.database import ProfileStore
from memsampd.daemon.store.keeper import ProfileKeeper
from memsampd.daemon.store.keys import program_key
from memsampd.estimate.events import BurstRecord, ExecRecord, MergeRecord, StoreDropRecord
from memsampd.exporters.past import EMPTY
from memsampd.phases.leader import LeaderFollower

CONFIG = SessionConfig()
WAIT = "print('here', flush=True); input()"


def vector(phase: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    counts = np.zeros(CONFIG.bins)
    counts[phase * 5 : phase * 5 + 3] = 40
    return counts


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    store = ProfileStore(tmp_path / "store")
    yield store
    store.close()


class World:
    """Sessions of one program, an hour apart."""

    def __init__(self, store: ProfileStore) -> None:
        self.store = store
        self.unix_seconds = 1e9
        self.seconds = 0.0
        self.anonymous_share = 0.0
        self.told: list[str] = []

    def keeper(self, pid: int, cpu: str = "a processor") -> ProfileKeeper:
        self.unix_seconds += 3600
        self.told.clear()
        return ProfileKeeper(
            self.store,
            pid,
            CONFIG,
            cpu,
            lambda: self.anonymous_share,
            self.told.append,
            lambda: self.unix_seconds,
            lambda: self.seconds,
        )


def clusterer_of(*phases: int, first_id: int = 0) -> LeaderFollower:
    clusterer = LeaderFollower(first_id=first_id)
    for phase in phases:
        for _ in range(3):
            assert clusterer.learn_counts(vector(phase)).phase == phase + first_id
    return clusterer


def burst(phase: int, at: float, accesses: int = 3000) -> BurstRecord:
    record = burst_record(phase, int(at), accesses, 1e8)
    return msgspec.structs.replace(record, time_seconds=at)


@pytest.fixture
def program() -> Iterator[list[int]]:
    """Two processes of one program."""
    with running(sys.executable, "-c", WAIT) as one, running(sys.executable, "-c", WAIT) as other:
        for process in (one, other):
            assert process.stdout is not None
            process.stdout.readline()
        yield [one.pid, other.pid]


def learned(world: World, pid: int, *records: Any, phases: tuple[int, ...] = (0, 1)) -> None:
    """A session that learns something."""
    keeper = world.keeper(pid)
    clusterer = clusterer_of(*phases)
    assert keeper.begin(LeaderFollower(), 0).bursts() == ()
    keeper._programs[0].clusterer = clusterer
    for record in records:
        keeper.write(record)
    keeper.close()


def test_phases_with_bursts_are_known_to_another_process(
    store: ProfileStore, program: list[int]
) -> None:
    world = World(store)
    learned(world, program[0], burst(0, 1.0), burst(1, 2.0), burst(1, 3.0), phases=(0, 1, 2))
    assert world.told == []
    clusterer = LeaderFollower(first_id=10)
    known = world.keeper(program[1]).begin(clusterer, 10)
    bursts = known.bursts()
    assert known.windows == {10: 3, 11: 3}  # there was no burst of the third
    assert [each.phase for each in bursts] == [10, 11, 11]
    assert all(each.is_stored for each in bursts)
    assert [each.time_seconds for each in bursts] == pytest.approx([-3599, -3598, -3597])
    assert bursts[0].histogram() == burst(0, 1.0).histogram()
    assert bursts[0].timed == burst(0, 1.0).timed
    assert [clusterer.learn_counts(vector(phase)).phase for phase in (0, 1, 2)] == [10, 11, 12]
    (said,) = world.told
    assert said == "2 phases are known from the store, by 3 bursts, the latest 60 min old"


def test_rates_of_another_processor_are_not_believed(
    store: ProfileStore, program: list[int]
) -> None:
    world = World(store)
    learned(world, program[0], burst(0, 1.0))
    known = world.keeper(program[1], "another").begin(LeaderFollower(), 0)
    assert [each.timed for each in known.bursts()] == [None]


def test_what_was_known_is_kept_with_what_is_learned(
    store: ProfileStore, program: list[int]
) -> None:
    world = World(store)
    learned(world, program[0], burst(0, 1.0), burst(1, 2.0))
    keeper = world.keeper(program[1])
    known = keeper.begin(LeaderFollower(), 0)
    for each in known.bursts():  # the pipeline tells them as it tells the others
        keeper.write(each)
    keeper.write(burst(1, 5.0))
    keeper.close()
    again = world.keeper(program[0]).begin(LeaderFollower(), 0)
    assert [each.phase for each in again.bursts()] == [0, 1, 1]
    ages = [-each.time_seconds for each in again.bursts()]
    assert ages == pytest.approx([7199, 7198, 3595])


def test_nothing_is_written_where_nothing_was_learned(
    store: ProfileStore, program: list[int]
) -> None:
    world = World(store)
    learned(world, program[0], burst(0, 1.0))
    (before,) = store.list()
    keeper = world.keeper(program[1])
    keeper.begin(LeaderFollower(), 0)
    keeper.write(window_record(0, 0))
    keeper.close()
    assert store.list() == [before]


def test_merged_phases_are_one_and_dropped_bursts_are_gone(
    store: ProfileStore, program: list[int]
) -> None:
    world = World(store)
    learned(world, program[0], burst(0, 1.0), burst(1, 2.0))
    keeper = world.keeper(program[1])
    assert len(keeper.begin(LeaderFollower(), 0).bursts()) == 2
    keeper.write(StoreDropRecord(phase=1, window=3))
    keeper.write(burst(1, 6.0))
    assert "phase 1 does otherwise now" in world.told[-1]
    keeper.close()
    again = world.keeper(program[0])
    known = again.begin(LeaderFollower(), 0)
    assert [(each.phase, round(each.time_seconds)) for each in known.bursts()] == [
        (0, -7199),
        (1, -3594),
    ]
    again._programs[0].clusterer = clusterer_of(0)
    again.write(MergeRecord(gone=1, into=0))
    again.write(burst(0, 1.0))
    again.close()
    known = world.keeper(program[0]).begin(LeaderFollower(), 0)
    assert [each.phase for each in known.bursts()] == [0, 0, 0]


def test_what_is_dropped_goes_though_the_clock_went_back(
    store: ProfileStore, program: list[int]
) -> None:
    world = World(store)
    learned(world, program[0], burst(0, 1.0), burst(1, 2.0))
    world.unix_seconds -= 7200
    keeper = world.keeper(program[1])
    assert len(keeper.begin(LeaderFollower(), 0).bursts()) == 2
    keeper.write(burst(0, 6.0))
    for phase in (0, 1):
        keeper.write(StoreDropRecord(phase=phase, window=3))
    keeper.close()
    known = world.keeper(program[0]).begin(LeaderFollower(), 0)
    assert [(each.phase, round(each.time_seconds)) for each in known.bursts()] == [(0, -3594)]


def begun(world: World, pid: int) -> ProfileKeeper:
    """One that goes on: it knows a phase with a burst."""
    keeper = world.keeper(pid)
    clusterer = LeaderFollower()
    keeper.begin(clusterer, 0)
    clusterer.learn_counts(vector(0))
    keeper.write(burst(0, 1.0))
    return keeper


def test_it_is_written_now_and_then(store: ProfileStore, program: list[int]) -> None:
    world = World(store)
    keeper = begun(world, program[0])
    keeper.write(window_record(1, 0))
    assert store.list() == []
    world.seconds = 500.0
    keeper.write(window_record(2, 0))
    assert [each.bursts for each in store.list()] == [1]


def test_what_could_not_be_written_is_written_later(tmp_path: Path, program: list[int]) -> None:
    (tmp_path / "file").write_text("")
    store = ProfileStore(tmp_path / "file" / "store", now=lambda: world.seconds)
    world = World(store)
    keeper = begun(world, program[0])
    lived(keeper, 0.0, 0)
    for world.seconds in (500.0, 1000.0):
        keeper.write(window_record(1, 0))
        assert store.list() == []  # what was to be written has been tried
    (tmp_path / "file").unlink()
    world.seconds = 1500.0
    keeper.write(window_record(2, 0))
    (line,) = store.list()
    assert line.bursts == 1
    key = program_key(program[0], CONFIG)
    assert key is not None
    past = store.find_past(key)
    assert past is not None
    assert past[0] == line.saved_unix_seconds
    store.close()


def test_a_session_that_was_never_begun_leaves_nothing(
    store: ProfileStore, program: list[int]
) -> None:
    World(store).keeper(program[0]).close()
    assert store.list() == []


def test_code_of_its_own_making_is_known_to_the_same_process_only(
    store: ProfileStore, program: list[int]
) -> None:
    world = World(store)
    world.anonymous_share = 0.3
    learned(world, program[0], burst(0, 1.0))
    assert world.keeper(program[1]).begin(LeaderFollower(), 0).bursts() == ()
    assert len(world.keeper(program[0]).begin(LeaderFollower(), 0).bursts()) == 1


def test_the_program_before_is_saved_when_another_one_runs(
    store: ProfileStore, program: list[int]
) -> None:
    """Its records may come when the next one is known already."""
    world = World(store)
    keeper = world.keeper(program[0])
    keeper.begin(clusterer_of(), 0)
    keeper._programs[0].clusterer = clusterer_of(0)
    keeper.end_program()
    assert keeper.begin(LeaderFollower(first_id=1), 1).bursts() == ()
    world.anonymous_share = 1.0  # of the new program: no matter
    keeper.write(burst(0, 1.0))
    keeper.write(ExecRecord(time_seconds=2.0, command="next", executable="/bin/next"))
    (line,) = store.list()
    assert (line.phases, line.bursts) == (1, 1)
    assert len(world.keeper(program[1]).begin(LeaderFollower(), 0).bursts()) == 1
    keeper.close()


def test_what_is_known_stays_if_the_program_ends_before_it_is_read(
    store: ProfileStore, program: list[int]
) -> None:
    world = World(store)
    learned(world, program[0], burst(0, 1.0), burst(1, 2.0))
    (before,) = store.list()
    keeper = world.keeper(program[1])
    assert keeper.begin(LeaderFollower(), 0).windows == {0: 3, 1: 3}
    keeper.write(burst(1, 3.0))
    keeper.close()
    assert store.list() == [before]


def test_a_burst_that_cannot_be_read_is_left_out(
    store: ProfileStore, program: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(store)
    learned(world, program[0], burst(0, 1.0), burst(1, 2.0))
    store.list()  # it is written by now
    with sqlite3.connect(tmp_path / "store") as file:
        file.execute("UPDATE burst SET frame = zeroblob(100) WHERE phase = 1")
    file.close()
    known = world.keeper(program[1]).begin(LeaderFollower(), 0)
    assert [each.phase for each in known.bursts()] == [0]
    assert "a burst in the store cannot be used" in caplog.text


# -- what the process did ------------------------------------------------------------------------


def lived(keeper: ProfileKeeper, seconds: float, *phases: int) -> None:
    """A session in which each phase runs a second."""
    base = make_snapshot(1)
    used = dict.fromkeys(phases, 0.0)
    for phase in phases:
        for cpu_seconds in (0.0, 1.0):
            seconds += 1
            used[phase] = cpu_seconds
            estimates = tuple(
                replace(base.estimate.phases[0], id=id, cpu_seconds=each)
                for id, each in used.items()
            )
            estimate = replace(base.estimate, phases=estimates, cpu_seconds=sum(used.values()))
            keeper.publish(replace(base, time_seconds=seconds, estimate=estimate))


def session(
    world: World, pid: int, clusterer: LeaderFollower, *phases: int, bursts: bool = False
) -> ProfileKeeper:
    """One that begins with what is known, and sees phases."""
    keeper = world.keeper(pid)
    keeper.begin(clusterer, 0).bursts()
    for phase in phases if bursts else ():
        keeper.write(burst(phase, phase + 1.0))
    lived(keeper, world.seconds, *phases)
    world.seconds += 100
    return keeper


def test_what_a_process_did_is_told_with_the_phases_as_they_are_called_now(
    store: ProfileStore, program: list[int]
) -> None:
    world = World(store)
    first = session(world, program[0], clusterer_of(0, 1), 0, 1, bursts=True)
    assert first.past is None
    first.close()
    # Of phase 2 there is no burst: it is not known again.
    second = session(world, program[0], LeaderFollower(), 0, 2)
    assert second.past is not None
    assert second.past.phases == [0, 1]
    second.close()
    third = session(world, program[0], LeaderFollower())
    assert third.past is not None
    assert third.past.phases == [EMPTY - 1, 0, 1]
    assert third.past.known[1].curve is not None
    assert session(world, program[1], LeaderFollower()).past is None  # it is another process


def test_phases_of_another_process_are_not_taken_for_those_of_a_process(
    store: ProfileStore, program: list[int]
) -> None:
    world = World(store)
    session(world, program[0], clusterer_of(0, 1), 0, 1, bursts=True).close()
    # The program's phases are now known as the other process saw them.
    session(world, program[1], LeaderFollower(), 1, bursts=True).close()
    again = session(world, program[0], LeaderFollower())
    assert again.past is not None
    assert again.past.phases == [EMPTY - 2, EMPTY - 1]


def test_a_past_that_cannot_be_read_is_left_out(
    store: ProfileStore, program: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    world = World(store)
    key = program_key(program[0], CONFIG)
    assert key is not None
    store.save_past(key, 0.0, b"nonsense", world.unix_seconds)
    assert session(world, program[0], LeaderFollower()).past is None
    assert "cannot be read" in caplog.text
