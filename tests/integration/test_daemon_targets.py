"""One target of the daemon, and the node around it: what goes wrong with it stays with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from threads import in_a_thread
from tracees import (
    BUSY,
    no_free_descriptors,
    result_of,
    running,
    sleeping,
    wait_until_clean,
)

from memsampd import _core
from memsampd.daemon.accesses import tracing_thread
from memsampd.daemon.config import AccessChoice, SessionConfig
from memsampd.daemon.node.attachment import Common
from memsampd.daemon.node.config import NodeConfig, Rule, SessionOptions
from memsampd.daemon.node.discovery import ProcessKey, ProcessReader
from memsampd.daemon.node.node import Node
from memsampd.daemon.node.notify import Notifier
from memsampd.daemon.node.peers import Peer, peer_of
from memsampd.daemon.node.protocol import Request
from memsampd.daemon.node.state import AskedFor, StateFile
from memsampd.daemon.node.target import Target, Wanted
from memsampd.daemon.own_cpu import ProcessCpu
from memsampd.daemon.store.database import ProfileStore
from memsampd.daemon.surroundings import Surroundings
from memsampd.daemon.tracer import CaptureOrder
from memsampd.errors import MemsampdError
from memsampd.exporters.snapshot import Snapshot
from memsampd.machines.pmu import HardwareEvent
from memsampd.names import HELPER_PREFIX
from memsampd.sampler.perf.source import RECORD_BYTES
from memsampd.sampler.pmu.choice import PmuTrials
from memsampd.sampler.pmu.trial import Trial
from memsampd.sampler.process.identity import read_stat

OTHER = Peer(4242, 4242, is_privileged=False)


class Shown:
    """An exporter that keeps what it is shown, and one that cannot."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.seen: list[Snapshot] = []
        self._is_broken = is_broken

    def publish(self, snapshot: Snapshot) -> None:
        self.seen.append(snapshot)
        if self._is_broken and not snapshot.alive:
            raise ZeroDivisionError("of this exporter")

    def close(self) -> None:
        self.seen.clear()


def key_of(pid: int) -> ProcessKey:
    return ProcessKey(pid, read_stat(pid).start_ticks)


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    with running(sys.executable, "-c", BUSY) as process:
        yield process
        assert wait_until_clean(process.pid) == []


@pytest.fixture(scope="module")
def around() -> Surroundings:
    return Surroundings.read()


def common_of(around: Surroundings, *exporters: Shown, publish_seconds: float = 5.0) -> Common:
    return Common(around, lambda: False, lambda: publish_seconds, exporters, lambda make: make())


def target_of(
    pid: int,
    around: Surroundings,
    *exporters: Shown,
    asker: Peer | None = None,
    publish_seconds: float = 5.0,
) -> Target:
    wanted = Wanted(key_of(pid), "user", SessionConfig(), asker)
    common = common_of(around, *exporters, publish_seconds=publish_seconds)
    return Target(wanted, common, 0.0)


def shown_alive(target: Target, shown: Shown, now: float = 0.0) -> float:
    """Turns until its state was told; the time."""
    while not (shown.seen and shown.seen[-1].alive):
        now += 100.0
        assert target.turn(now)
    return now


def test_a_target_that_cannot_be_attached_to_is_tried_for_ever(around: Surroundings) -> None:
    target, now = target_of(os.getpid(), around), 0.0
    for _ in range(1100):
        assert target.turn(now)
        assert target.next_turn_seconds - now <= 300.0
        now = target.next_turn_seconds
    assert "memsampd itself" in target.status().reason


def test_mistakes_of_ours_at_an_attach_are_a_reason(
    busy: subprocess.Popen[str], around: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    target = target_of(busy.pid, msgspec.structs.replace(around, process_cpu=None))
    for now in (0.0, 10.0, 20.0):
        assert target.turn(now)
    assert target.status().state == "failed"
    assert target.next_turn_seconds == 28.0
    assert sum(each.exc_info is not None for each in caplog.records) == 1


def test_what_bursts_take_is_paid_for_by_their_target(busy: subprocess.Popen[str]) -> None:
    """Be it in threads of the core: the first account has what is nobody's."""
    process_cpu = ProcessCpu()
    _, account = process_cpu.open(), process_cpu.open()
    tracer = tracing_thread(busy.pid, SessionConfig(), account)
    try:
        used_seconds = account.used_seconds
        tracer.order(CaptureOrder({busy.pid: 1}, 0.0, 200_000, 0.005))
        cost = result_of(tracer).cost
        assert account.used_seconds - used_seconds >= cost.tracer_cpu_seconds
    finally:
        tracer.close()


TWO_THREADS = """
import threading
threading.Thread(target=input).start()
print(flush=True)
input()
"""


def test_a_target_is_observed_though_there_is_no_room_for_samples_of_accesses(
    tmp_path: Path,
    around: Surroundings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Page faults in the place of PEBS: two threads need two descriptors, an eighth of 8 is one."""
    faults = HardwareEvent("page faults", _core.PERF_TYPE_SOFTWARE, 2)
    around = msgspec.structs.replace(around, pmu=PmuTrials(addresses=(Trial(faults, ""),)))
    monkeypatch.setattr("memsampd.daemon.node.attachment._share_of_files", lambda: 8)
    store = ProfileStore(tmp_path / "store")
    with running(sys.executable, "-c", TWO_THREADS) as process:
        assert process.stdout is not None
        process.stdout.readline()
        common = replace(common_of(around), store=store)
        target = Target(Wanted(key_of(process.pid), "user", SessionConfig()), common, 0.0)
        assert target.turn(0.0)
        assert target.status().state != "failed", target.status().reason
        assert "no lines of sampled accesses are watched" in caplog.text
        target.close(ended=False)
    store.close()


def test_exporters_are_told_of_a_failure_and_one_of_theirs_stops_nobody(
    busy: subprocess.Popen[str], around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, shown = Shown(is_broken=True), Shown()
    target = target_of(busy.pid, around, broken, shown)
    now = shown_alive(target, shown)
    with monkeypatch.context() as patched:
        patched.setattr(target, "_take_turn", lambda *_: 1 / 0)
        assert target.turn(now + 1.0)
    assert not shown.seen[-1].alive
    assert target.status().state == "failed"
    now = shown_alive(target, shown, now + 10.0)
    target.close(ended=False)
    assert not shown.seen[-1].alive


def test_who_wakes_up_is_looked_at_before_its_ring_is_full(around: Surroundings) -> None:
    with sleeping() as process:
        target, now = target_of(process.pid, around), 0.0
        while target.status().state != "idle":
            assert target.turn(now)
            now = target.next_turn_seconds
        now += 10.0
        assert target.turn(now)
        period = SessionConfig().sampling_period_seconds(around.sampling_cost)
        full_seconds = common_of(around).ring_bytes / RECORD_BYTES * period
        assert target.next_turn_seconds - now < 0.9 * full_seconds
        target.close(ended=False)


def test_states_are_told_as_often_as_is_wanted_and_no_more_often(
    busy: subprocess.Popen[str], around: Surroundings
) -> None:
    shown, pauses = Shown(), list[float]()
    target = target_of(busy.pid, around, shown, publish_seconds=0.25)
    now = told = shown_alive(target, shown)
    while pauses.count(0.25) < 2:  # it is told again once the process has run
        now += 0.125
        shown.seen.clear()
        assert target.turn(now)
        if shown.seen:
            pauses.append(now - told)
            told = now
    assert min(pauses) == 0.25
    target.close(ended=False)


def test_pauses_get_longer_though_it_can_be_attached_to_each_time(
    busy: subprocess.Popen[str], around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, now, pauses = target_of(busy.pid, around), 0.0, []
    for _ in range(3):
        assert target.turn(now)
        with monkeypatch.context() as patched:
            patched.setattr(target, "_take_turn", lambda *_: 1 / 0)
            assert target.turn(now + 1.0)
        pauses.append(target.next_turn_seconds - now - 1.0)
        now = target.next_turn_seconds
    assert pauses == [2.0, 4.0, 8.0]
    assert target.turn(now)
    assert target.turn(now + 61.0)
    monkeypatch.setattr(target, "_take_turn", lambda *_: 1 / 0)
    assert target.turn(now + 62.0)
    assert target.next_turn_seconds - now == 64.0
    target.close(ended=False)


def test_a_target_that_is_no_longer_the_askers_is_let_go_and_not_told_of(
    busy: subprocess.Popen[str], around: Surroundings
) -> None:
    shown = Shown()
    assert not target_of(busy.pid, around, shown, asker=OTHER).turn(0.0)
    target = target_of(busy.pid, around, shown, asker=Peer(os.geteuid(), os.getegid(), False))
    now = shown_alive(target, shown)
    last = shown.seen[-1]
    target.wanted = replace(target.wanted, asked_by=OTHER)  # as if its ids were others now
    assert not target.turn(now + 100.0)
    assert shown.seen[-1] == msgspec.structs.replace(last, alive=False, is_let_go=True)


@pytest.mark.parametrize("asker", [None, Peer(os.geteuid(), os.getegid(), False)])
def test_who_is_short_of_descriptors_does_not_take_a_target_for_gone(
    asker: Peer | None, busy: subprocess.Popen[str], around: Surroundings
) -> None:
    shown = Shown()
    target = target_of(busy.pid, around, shown, asker=asker)
    with no_free_descriptors():
        assert target.turn(0.0)
    assert target.status().state == "failed"
    assert "Too many open files" in target.status().reason
    now = shown_alive(target, shown, 100.0)
    with no_free_descriptors():
        assert target.turn(now + 100.0)
    now = shown_alive(target, shown, now + 1000.0)
    target.close(ended=False)


def test_what_was_asked_for_stays_so_though_no_descriptor_is_left(
    tmp_path: Path, busy: subprocess.Popen[str]
) -> None:
    key, state = key_of(busy.pid), StateFile(tmp_path / "state")
    mine = Peer(os.geteuid(), os.getegid(), is_privileged=False)
    kept = AskedFor(key.pid, key.start_ticks, mine.uid, mine.gid)
    state.write([kept])
    reader = ProcessReader(list_pids=lambda: [busy.pid])
    node = Node(NodeConfig(), (), tmp_path / "s", state, Notifier({}), NodeConfig, reader)
    with no_free_descriptors():
        node.targets.scan()
    node.targets.take_up()
    with no_free_descriptors():
        node.targets.scan()
        node.targets.take_turns(1.0)
    assert [each.target.pid for each in node.status().targets] == [busy.pid]
    assert state.read() == (kept,)
    in_a_thread(lambda: node.run(0.0))


def test_what_was_asked_for_is_kept_however_the_daemon_ends(
    tmp_path: Path, busy: subprocess.Popen[str]
) -> None:
    key, state = key_of(busy.pid), StateFile(tmp_path / "state")
    mine = AskedFor(key.pid, key.start_ticks, os.geteuid(), os.getegid())
    state.write([mine])
    node = Node(NodeConfig(), (), tmp_path / "s", state, Notifier({}), NodeConfig)
    in_a_thread(lambda: node.run(0.0))
    assert state.read() == (mine,)


def test_what_is_not_the_askers_any_more_is_not_taken_up(
    tmp_path: Path, busy: subprocess.Popen[str]
) -> None:
    key, state = key_of(busy.pid), StateFile(tmp_path / "state")
    state.write([AskedFor(key.pid, key.start_ticks, OTHER.uid, OTHER.gid)])
    node = Node(NodeConfig(), (), tmp_path / "s", state, Notifier({}), NodeConfig)
    in_a_thread(lambda: node.run(0.0))
    assert node.status().ended_targets == 0


def test_where_accesses_come_from_is_kept_though_a_rule_chose_the_process(
    tmp_path: Path, busy: subprocess.Popen[str]
) -> None:
    key, state = key_of(busy.pid), StateFile(tmp_path / "state")
    me = peer_of(os.geteuid(), os.getegid())
    wishes: list[AccessChoice | None] = []

    def observe(ask: Callable[[Node], object], **session: Any) -> None:
        rule = Rule(name="mine", user=me.uid, session=SessionOptions(**session))
        reader = ProcessReader(list_pids=lambda: [busy.pid])
        config = NodeConfig(rules=(rule,))
        node = Node(config, (), tmp_path / "s", state, Notifier({}), lambda: config, reader)
        node.targets.take_up()
        node.targets.scan()
        wishes.extend(each.wanted.config.accesses for each in node.targets)
        ask(node)
        in_a_thread(lambda: node.run(0.0))

    observe(lambda node: node.targets.ask_for(key, me, "watchpoints"), accesses="bursts")
    assert state.read() == (
        AskedFor(key.pid, key.start_ticks, me.uid, me.gid, "watchpoints", is_wish=True),
    )
    observe(lambda node: None, accesses="bursts")
    observe(lambda node: None, accesses="bursts", watchpoints=False)  # it cannot be had now
    observe(lambda node: node.targets.let_go(key.pid, me), accesses="bursts")
    observe(lambda node: None, accesses="bursts")
    assert wishes == ["bursts", "watchpoints", "bursts", "watchpoints", "bursts"]
    assert state.read() == ()
    # Whose it is not has no say, be it that it has become another's since.
    state.write(
        [AskedFor(key.pid, key.start_ticks, OTHER.uid, OTHER.gid, "watchpoints", is_wish=True)]
    )
    observe(lambda node: None, accesses="bursts")
    assert wishes[-1] == "bursts"


def test_what_was_asked_for_is_taken_up_though_its_accesses_cannot_be_had_so_now(
    tmp_path: Path, busy: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    key, state = key_of(busy.pid), StateFile(tmp_path / "state")
    kept = AskedFor(key.pid, key.start_ticks, os.geteuid(), os.getegid(), "watchpoints")
    state.write([kept])
    config = NodeConfig(session=SessionOptions(watchpoints=False))
    node = Node(config, (), tmp_path / "s", state, Notifier({}), lambda: config)
    node.targets.take_up()
    assert [each.wanted.config.accesses for each in node.targets] == ["auto"]
    assert "do not come from watchpoints, as a user chose" in caplog.text
    in_a_thread(lambda: node.run(0.0))
    assert state.read() == (kept,)


def test_who_comes_to_another_rule_is_observed_as_that_one_says(
    tmp_path: Path, busy: subprocess.Popen[str]
) -> None:
    """Another name alone makes no other target of it."""
    key, reader = key_of(busy.pid), ProcessReader(list_pids=lambda: [busy.pid])

    def config(name: str, max_stop: float) -> NodeConfig:
        own = SessionOptions(max_stop=max_stop)
        return NodeConfig(rules=(Rule(name=name, user=os.geteuid(), session=own),))

    state = StateFile(tmp_path / "state")
    node = Node(config("a", 0.005), (), tmp_path / "s", state, Notifier({}), NodeConfig, reader)
    seen = []
    for name, max_stop in (("a", 0.005), ("b", 0.005), ("c", 0.001)):
        node.targets.use(config(name, max_stop))
        node.targets.scan()
        (target,) = node.targets
        seen.append((target, target.wanted))
    assert all(wanted.key == key for _, wanted in seen)
    assert [wanted.rule for _, wanted in seen] == ["a", "b", "c"]
    assert [wanted.config.max_stop_seconds for _, wanted in seen] == [0.005, 0.005, 0.001]
    assert seen[0][0] is seen[1][0]
    assert seen[1][0] is not seen[2][0]
    in_a_thread(lambda: node.run(0.0))


def test_whatever_holds_up_the_loop_is_part_of_its_pass(tmp_path: Path) -> None:
    took_seconds = []

    def list_pids() -> list[int]:
        began = time.monotonic()
        time.sleep(0.1)
        took_seconds.append(time.monotonic() - began)
        node.stop()
        return []

    state, reader = StateFile(tmp_path / "state"), ProcessReader(list_pids=list_pids)
    node = Node(NodeConfig(), (), tmp_path / "s", state, Notifier({}), NodeConfig, reader)
    in_a_thread(node.run)
    assert node.status().loop_seconds >= took_seconds[0]


def test_turns_that_take_long_let_others_in_and_everybody_has_one(tmp_path: Path) -> None:
    mark = f"6{os.getpid()}"
    config = NodeConfig(rules=(Rule(name="marked", command_line=f"^sleep {mark}$"),))
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(running("sleep", mark))
        state = StateFile(tmp_path / "state")
        node = Node(config, (), tmp_path / "s", state, Notifier({}), NodeConfig)
        node.targets.scan()
        for waiting in (3, 2, 1, 0):
            assert node.status().by_state()["waiting"] == waiting
            node.targets.take_turns(0.0)
        in_a_thread(lambda: node.run(0.0))


NAMED = """
import sys
open("/proc/self/comm", "w").write(sys.argv[1])
print(flush=True)
sys.stdin.read()
"""


def test_helpers_of_the_daemon_are_not_observed(tmp_path: Path) -> None:
    rule = Rule(name="marked", command_line=f"{tmp_path}")
    node = Node(
        NodeConfig(rules=(rule,)),
        (),
        tmp_path / "s",
        StateFile(tmp_path / "state"),
        Notifier({}),
        NodeConfig,
    )
    words = (sys.executable, "-c", NAMED)
    with (
        running(*words, f"{HELPER_PREFIX}x", str(tmp_path)) as helper,
        running(*words, "other", str(tmp_path)) as other,
    ):
        for each in (helper, other):
            assert each.stdout is not None
            each.stdout.readline()
        node.targets.scan()
        assert [each.target.pid for each in node.status().targets] == [other.pid]
        in_a_thread(lambda: node.run(0.0))


def test_an_attach_of_what_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state")
    node = Node(NodeConfig(), (), tmp_path / "s", state, Notifier({}), NodeConfig)
    with pytest.raises(MemsampdError):
        node.answer(Request(1, "attach", 1 << 22), Peer(0, 0, is_privileged=True))
    assert node.status().targets == ()
    in_a_thread(lambda: node.run(0.0))
