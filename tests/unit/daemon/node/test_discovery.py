"""Which processes become targets."""

from __future__ import annotations

import os
import pwd
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tracees import no_free_descriptors, running

from memsampd.daemon.node.config import Rule
from memsampd.daemon.node.discovery import (
    ProcessFacts,
    ProcessKey,
    ProcessReader,
    choose,
    matches,
)

CONTAINER = "3f2a" * 16
NGINX = ProcessFacts(
    key=ProcessKey(100, 5),
    parent_pid=1,
    command="nginx",
    command_line="nginx: worker process",
    uid=33,
    user="www-data",
    cgroup=f"/system.slice/nginx.service/docker-{CONTAINER}.scope",
    cpu_share=0.2,
)


def process(
    pid: int, parent: int = 1, command: str = "nginx", cpu: float | None = 0.1
) -> ProcessFacts:
    return replace(NGINX, key=ProcessKey(pid, 5), parent_pid=parent, command=command, cpu_share=cpu)


@pytest.mark.parametrize(
    ("rule", "is_met"),
    [
        (Rule(name="r", command="nginx"), True),
        (Rule(name="r", command="ngin"), False),
        (Rule(name="r", command_line="worker"), True),
        (Rule(name="r", command_line="^worker"), False),
        (Rule(name="r", user="www-data"), True),
        (Rule(name="r", user=33), True),
        (Rule(name="r", user="33"), True),
        (Rule(name="r", user=0), False),
        (Rule(name="r", cgroup="/system.slice"), True),
        (Rule(name="r", cgroup="system.slice/nginx.service/"), True),
        (Rule(name="r", cgroup="/sys/fs/cgroup/system.slice"), True),
        (Rule(name="r", cgroup="/system"), False),
        (Rule(name="r", container=CONTAINER[:12]), True),
        (Rule(name="r", container=CONTAINER), True),
        (Rule(name="r", container=CONTAINER[1:14]), False),
        (Rule(name="r", unit="nginx"), True),
        (Rule(name="r", unit="nginx.service"), True),
        (Rule(name="r", unit="ginx"), False),
        (Rule(name="r", command="nginx", user=0), False),
    ],
)
def test_all_conditions_of_a_rule_must_hold(rule: Rule, is_met: bool) -> None:
    assert matches(rule, NGINX) is is_met


def test_long_names_are_known_by_what_the_kernel_keeps() -> None:
    facts = replace(NGINX, command="a-rather-long-n")
    assert matches(Rule(name="r", command="a-rather-long-name"), facts)


def test_the_first_rule_that_matches_has_it() -> None:
    rules = [Rule(name="a", command="nginx"), Rule(name="b", user=33)]
    choice = choose(rules, [process(1), process(2, command="php")], {}, 100)
    assert {key.pid: found.rule.name for key, found in choice.found.items()} == {1: "a", 2: "b"}


def test_where_there_is_no_room_targets_stay_and_then_the_busiest_come() -> None:
    rules = [Rule(name="a", command="nginx", largest_number=2)]
    processes = [process(1, cpu=0.1), process(2, cpu=0.9), process(3, cpu=0.5)]
    choice = choose(rules, processes, {ProcessKey(1, 5): "a"}, 100)
    assert {key.pid for key in choice.found} == {1, 2}
    assert choice.left_out == 1
    assert len(choose(rules, processes, {}, 1).found) == 1


def test_who_was_asked_for_takes_no_place_of_a_rule() -> None:
    rules = [Rule(name="a", command="nginx", largest_number=1, follow_children=True)]
    processes = [process(1, cpu=0.9), process(2, cpu=0.1), process(3, 1, "gzip", cpu=0.0)]
    assert {key.pid for key in choose(rules, processes, {}, 9).found} == {1}
    choice = choose(rules, processes, {}, 9, {processes[0].key})
    assert ({key.pid for key in choice.found}, choice.left_out) == ({2}, 1)


def test_who_used_enough_cpu_time_once_stays() -> None:
    rules = [Rule(name="a", command="nginx", least_cpu=0.5)]
    idle = process(1, cpu=0.0)
    assert not choose(rules, [idle], {}, 100).found
    assert choose(rules, [idle], {idle.key: "a"}, 100).found
    assert not choose(rules, [replace(idle, command="sh")], {idle.key: "a"}, 100).found


def test_who_uses_too_little_for_one_rule_is_left_to_the_next() -> None:
    rules = [
        Rule(name="busy", least_cpu=0.2, follow_children=True),
        Rule(name="web", command="nginx"),
    ]
    quiet, busy, other = process(1, cpu=0.05), process(2, cpu=0.5), process(3, 1, "sh", cpu=0.0)
    child = process(4, 3, "gzip", cpu=0.9)
    choice = choose(rules, [quiet, busy, other, child], {}, 100)
    found = {key.pid: each.rule.name for key, each in choice.found.items()}
    assert found == {1: "web", 2: "busy", 4: "busy"}


def test_who_was_never_looked_at_before_waits_for_the_first_rule_that_matches_it() -> None:
    web = Rule(name="web", command="nginx", follow_children=True)
    busy = Rule(name="busy", least_cpu=0.2)
    new, child = process(1, cpu=None), process(2, 1, "php", None)
    assert not choose([busy, web], [new], {}, 100).found
    for rules in ([web, busy], [busy, web]):
        choice = choose(rules, [new, child], {new.key: "web"}, 100)
        found = {key.pid: each.rule.name for key, each in choice.found.items()}
        assert found == {1: "web", 2: "web"}


def test_a_target_keeps_its_rule_however_much_it_uses() -> None:
    rules = [
        Rule(name="busy", least_cpu=0.2, largest_number=1, follow_children=True),
        Rule(name="web", command="nginx", follow_children=True),
        Rule(name="zip", command="gzip"),
    ]
    parent, child = process(10, cpu=0.9), process(11, 10, "php", 0.9)
    new, other = process(12, 11, "sh", 0.0), process(20, 1, "make", 0.0)
    kept = {parent.key: "web", child.key: "web", other.key: "busy"}
    choice = choose(rules, [parent, child, new, other], kept, 100)
    found = {key.pid: each.rule.name for key, each in choice.found.items()}
    assert found == {10: "web", 11: "web", 12: "web", 20: "busy"}
    assert choice.left_out == 0
    # As another program it is another rule's.
    choice = choose(rules, [replace(child, command="gzip")], kept, 100)
    assert choice.found[child.key].rule.name == "zip"
    # Without its rule it is chosen anew.
    choice = choose(rules, [parent, child], {parent.key: "web", child.key: "gone"}, 100)
    assert choice.found[child.key].rule.name == "busy"


@pytest.mark.parametrize("follows", [False, True])
def test_who_uses_too_little_for_one_rule_is_still_a_child_for_another(follows: bool) -> None:
    web = Rule(name="web", command="nginx", follow_children=True)
    busy = Rule(name="busy", least_cpu=0.2, follow_children=follows)
    family = [process(10), process(11, 10, "php", 0.05), process(12, 11, "gzip", 0.05)]
    for rules in ([web, busy], [busy, web]):
        choice = choose(rules, family, {}, 100)
        found = {key.pid: each.rule.name for key, each in choice.found.items()}
        assert found == {10: "web", 11: "web", 12: "web"}
        assert choice.left_out == 0
    at_work = replace(family[2], cpu_share=0.9)
    choice = choose([web, busy], [*family[:2], at_work], {}, 100)
    assert choice.found[at_work.key].rule.name == "busy"


def test_the_nearest_ancestors_rule_comes_first() -> None:
    rules = [
        Rule(name="web", command="nginx", follow_children=True),
        Rule(name="php", command="php", least_cpu=0.2, follow_children=True),
    ]
    parent, idle, busy = process(10), process(11, 10, "php", 0.0), process(13, 11, "xz", 0.5)
    choice = choose(rules, [busy, process(12, 11, "gzip", 0.0), idle, parent], {}, 100)
    found = {key.pid: each.rule.name for key, each in choice.found.items()}
    assert found == {10: "web", 11: "web", 12: "web", 13: "php"}


def test_children_of_children_are_targets_whatever_they_run() -> None:
    family = [process(10), process(11, 10, "sh"), process(12, 11, "gzip"), process(20, 1, "gzip")]
    following = Rule(name="a", command="nginx", follow_children=True)
    assert {key.pid for key in choose([following], family, {}, 100).found} == {10, 11, 12}
    alone = Rule(name="a", command="nginx")
    assert {key.pid for key in choose([alone], family, {}, 100).found} == {10}


def test_a_child_that_has_a_rule_of_its_own_is_that_ones() -> None:
    rules = [
        Rule(name="a", command="nginx", follow_children=True),
        Rule(name="b", command="gzip"),
    ]
    choice = choose(rules, [process(10), process(11, 10, "gzip")], {}, 100)
    assert {key.pid: found.rule.name for key, found in choice.found.items()} == {10: "a", 11: "b"}


def test_children_stay_when_their_parent_has_ended() -> None:
    rule = Rule(name="a", command="nginx", follow_children=True)
    orphan, grandchild = process(11, 1, "gzip"), process(12, 11, "xz")
    choice = choose([rule], [orphan, grandchild], {orphan.key: "a"}, 100)
    assert {key.pid for key in choice.found} == {11, 12}
    assert not choose([rule], [replace(orphan, key=ProcessKey(11, 6))], {orphan.key: "a"}, 9).found


def fake_process(
    proc: Path, pid: int, command: str, ticks: int, start: int = 7, *, is_half_made: bool = False
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["S", "1", *["0"] * 9, str(ticks), "0", *["0"] * 6, str(start), *["0"] * 30]
    if not is_half_made:
        fields[23:26] = ["4096", "8192", "9000"]
    (folder / "stat").write_text(f"{pid} ({command}) {' '.join(fields)}\n")
    (folder / "cmdline").write_bytes(b"" if is_half_made else command.encode() + b"\0-x\0")
    (folder / "status").write_text("Pid:\t1\nUid:\t1\t4242424\t1\t1\n")
    (folder / "cgroup").write_text("0::/a.slice/b.service\n")


def test_a_scan_tells_cpu_time_since_the_one_before(tmp_path: Path) -> None:
    now = [100.0]
    reader = ProcessReader(tmp_path, lambda: [5, 6], lambda: now[0])
    fake_process(tmp_path, 5, "one", 100)
    (first,) = reader.scan()  # 6 has ended between
    assert (first.command, first.command_line, first.uid, first.user) == (
        "one",
        "one -x",
        4242424,
        "4242424",
    )
    assert (first.cgroup, first.cpu_share) == ("/a.slice/b.service", None)
    now[0] += 2.0
    fake_process(tmp_path, 5, "one", 100 + os.sysconf("SC_CLK_TCK"))
    assert reader.scan()[0].cpu_share == 0.5
    fake_process(tmp_path, 5, "two", 0)
    assert reader.scan()[0].command_line == "two -x"
    fake_process(tmp_path, 5, "two", 900, start=8)
    assert reader.scan()[0].cpu_share is None


def test_what_an_exec_is_making_is_what_it_was_until_that_is_done(tmp_path: Path) -> None:
    reader = ProcessReader(tmp_path, lambda: [5])
    fake_process(tmp_path, 5, "one", 100, is_half_made=True)
    assert reader.scan() == []
    fake_process(tmp_path, 5, "one", 100)
    assert reader.scan()[0].command_line == "one -x"
    for command in ("two", "two"):  # its name is there before its arguments
        fake_process(tmp_path, 5, command, 100, is_half_made=True)
        (facts,) = reader.scan()
        assert (facts.command, facts.command_line) == ("one", "one -x")
    fake_process(tmp_path, 5, "two", 100)
    (facts,) = reader.scan()
    assert (facts.command, facts.command_line) == ("two", "two -x")


def test_who_is_short_of_descriptors_goes_on_with_what_is_known(tmp_path: Path) -> None:
    fake_process(tmp_path, 7, "a", ticks=0)
    reader = ProcessReader(tmp_path, lambda: [7, 8])
    known = reader.scan()
    fake_process(tmp_path, 8, "b", ticks=0)
    with no_free_descriptors():
        assert reader.scan() == known
    assert [each.key.pid for each in reader.scan()] == [7, 8]


def test_a_user_who_could_not_be_looked_up_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_process(tmp_path, 7, "a", ticks=0)
    now, is_there = 100.0, False

    def look_up(uid: int) -> pwd.struct_passwd:
        if not is_there:
            raise KeyError(uid)
        return pwd.struct_passwd(("ada", "", uid, 1, "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    reader = ProcessReader(tmp_path, lambda: [7], lambda: now)
    assert {each.user for each in reader.scan()} == {"4242424"}
    now, is_there = now + 60.0, True  # as if a service had begun meanwhile
    for _ in range(13):  # all of what is known is read again now and then
        users = {each.user for each in reader.scan()}
    assert users == {"ada"}


def test_of_a_command_line_without_end_the_beginning_is_read(tmp_path: Path) -> None:
    fake_process(tmp_path, 5, "one", 100)
    with (tmp_path / "5" / "cmdline").open("wb") as file:
        file.write(b"\xffone\0-x\0")
        file.truncate(1 << 40)
    (found,) = ProcessReader(tmp_path, lambda: [5]).scan()
    assert found.command_line.startswith("\ufffdone -x")
    assert len(found.command_line) <= 4096


def test_real_processes_are_found() -> None:
    with running(sys.executable, "-c", "input()", "a mark") as child:
        found = {facts.key.pid: facts for facts in ProcessReader().scan()}
    assert found[child.pid].command_line.endswith("input() a mark")
    assert found[child.pid].uid == os.geteuid()
    assert found[child.pid].parent_pid == os.getpid()
    assert 2 not in found or found[2].command != "kthreadd"
