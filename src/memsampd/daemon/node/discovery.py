"""Which processes are targets: rules, and what /proc says of all processes."""

from __future__ import annotations

import math
import os
import pwd
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from memsampd.daemon.node.config import Rule
from memsampd.sampler.process.identity import GONE, PROC, ProcessStat, read_stat, valid_text
from memsampd.sampler.process.status import read_status

# A command line or a cgroup may change without notice; they are read again after so many scans.
_READ_AGAIN_SCANS = 12
_UNKNOWN_USER_SECONDS = 60.0  # until one without a name is asked for again
_COMMAND_LINE_BYTES = 4096  # that are looked at
_COMMAND_BYTES = 15  # what the kernel keeps of a short name


@dataclass(frozen=True, slots=True, order=True)
class ProcessKey:
    """One process for good: a pid that comes again has another start time.

    Attributes:
        pid: process id.
        start_ticks: start time in clock ticks since boot.
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What rules look at.

    Attributes:
        key: the process.
        parent_pid: process id of the parent.
        command: short name.
        command_line: arguments, joined by blanks; its first 4 KiB.
        uid: effective user id.
        user: name of that user, or the number as text.
        cgroup: control group, as ``/system.slice/nginx.service``; empty where unknown.
        cpu_share: CPU time since the scan before, as a share of one CPU; None: not known yet.
    """

    key: ProcessKey
    parent_pid: int
    command: str
    command_line: str
    uid: int
    user: str
    cgroup: str
    cpu_share: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """A process that is to be a target.

    Attributes:
        facts: the process.
        rule: that chose it, or that chose the process it descends from.
    """

    facts: ProcessFacts
    rule: Rule


@dataclass(frozen=True, slots=True)
class Choice:
    """What rules make of all processes.

    Attributes:
        found: the targets, by key.
        left_out: processes that rules match, but for which there is no room.
    """

    found: Mapping[ProcessKey, Found]
    left_out: int


def matches(rule: Rule, facts: ProcessFacts) -> bool:
    """Whether a process meets all conditions of a rule, but for its CPU time.

    >>> web = Rule(name="web", command="nginx", user="www-data")
    >>> facts = ProcessFacts(ProcessKey(1, 2), 1, "nginx", "nginx: worker", 33, "www-data", "", 0.0)
    >>> matches(web, facts), matches(web, replace(facts, user="root"))
    (True, False)
    """
    return (
        (rule.command is None or rule.command[:_COMMAND_BYTES] == facts.command)
        and (rule.command_line is None or bool(re.search(rule.command_line, facts.command_line)))
        and (rule.user is None or str(rule.user) in (facts.user, str(facts.uid)))
        and (rule.cgroup is None or _lies_in(facts.cgroup, rule.cgroup))
        and (rule.container is None or _is_of_container(facts.cgroup, rule.container))
        and (rule.unit is None or _unit_name(rule.unit) in facts.cgroup.split("/"))
    )


def _lies_in(cgroup: str, wanted: str) -> bool:
    wanted = "/" + wanted.removeprefix("/sys/fs/cgroup").strip("/")
    return wanted == "/" or cgroup == wanted or cgroup.startswith(f"{wanted}/")


def _is_of_container(cgroup: str, container: str) -> bool:
    """Runtimes name a container's group by its id, with words around it."""
    return any(
        digits.startswith(container)
        for digits in re.findall(r"(?<![0-9a-f])[0-9a-f]{12,64}(?![0-9a-f])", cgroup)
    )


def _unit_name(unit: str) -> str:
    return unit if "." in unit else f"{unit}.service"


def choose(
    rules: Sequence[Rule],
    processes: Iterable[ProcessFacts],
    kept: Mapping[ProcessKey, str],
    most: int,
    apart: Collection[ProcessKey] = (),
) -> Choice:
    """Choose targets.

    The first rule that matches a process, and asks for no more CPU time than it uses, has it; where
    none does, the first such rule that follows an ancestor of it, the nearest one's first. Where
    a rule has no room for all, those that are targets already stay, then those that use most CPU
    time come. A target comes and goes with its program, not with its load: it stays though it uses
    less CPU time than its rule asks of a new one, and goes to no other rule because it uses more.

    Args:
        rules: in order.
        processes: all of them.
        kept: processes that are targets by a rule now, with the rule's name.
        most: targets in all.
        apart: processes that take no rule's place: users have asked for them.
    """

    def uses_enough(rule: Rule, facts: ProcessFacts) -> bool:
        kept_by = stays.get(facts.key)
        if kept_by is None:
            return (facts.cpu_share or 0.0) >= rule.least_cpu
        return rule is kept_by or not rule.least_cpu

    everyone = list(processes)
    by_name = {rule.name: rule for rule in rules}
    stays = {  # targets by a rule that holds for them still
        facts.key: rule
        for facts in everyone
        if (rule := by_name.get(kept.get(facts.key, ""))) is not None
        and (rule.follow_children or matches(rule, facts))
    }
    own: dict[ProcessKey, Rule] = {}
    followed: dict[ProcessKey, list[Rule]] = {}  # those that its children may be targets of
    for facts in everyone:
        matching = [each for each in rules if matches(each, facts)]
        if facts.cpu_share is None and facts.key not in stays:
            matching = matching[:1]  # others once it is known whether it uses enough for this one
        rule = next((each for each in matching if uses_enough(each, facts)), None)
        if rule is not None:
            own[facts.key] = rule
            matching = [rule]
        # Who uses too little for all of them may have children that use enough.
        followed[facts.key] = [each for each in matching if each.follow_children]
    descended = _descended(everyone, own, followed, stays)
    by_rule: dict[str, list[Found]] = {rule.name: [] for rule in rules}
    for facts in everyone:
        candidates = [own[facts.key]] if facts.key in own else descended.get(facts.key, ())
        rule = next((each for each in candidates if uses_enough(each, facts)), None)
        if rule is not None:
            by_rule[rule.name].append(Found(facts, rule))
    chosen: dict[ProcessKey, Found] = {}
    left_out = 0
    for rule in rules:
        wanted = [found for found in by_rule[rule.name] if found.facts.key not in apart]
        wanted.sort(key=lambda found: _rank(found, kept))
        room = min(rule.largest_number, most - len(chosen))
        chosen.update((found.facts.key, found) for found in wanted[:room])
        left_out += len(wanted[room:])
    return Choice(chosen, left_out)


def _rank(found: Found, kept: Mapping[ProcessKey, str]) -> tuple[bool, float, ProcessKey]:
    key = found.facts.key
    return kept.get(key) != found.rule.name, -(found.facts.cpu_share or 0.0), key


def _descended(
    everyone: Sequence[ProcessFacts],
    own: Collection[ProcessKey],
    followed: Mapping[ProcessKey, Sequence[Rule]],
    stays: Mapping[ProcessKey, Rule],
) -> dict[ProcessKey, tuple[Rule, ...]]:
    """By process that has no rule of its own, the rules that follow its ancestors, nearest first.

    Children, and theirs, are told, no matter what they run now. A process that was one before stays
    one when its parent has ended.

    Args:
        everyone: all processes.
        own: those that have a rule of their own.
        followed: by process, the rules that it matches and that follow its children.
        stays: by process, the rule that it is a target by now, and may stay one.
    """
    descended: dict[ProcessKey, tuple[Rule, ...]] = {}
    handed_on = {key.pid: tuple(found) for key, found in followed.items()}
    is_changed = True
    while is_changed:
        is_changed = False
        for facts in everyone:
            if facts.key in own:
                continue
            found = handed_on.get(facts.parent_pid, ())
            kept_by = stays.get(facts.key)
            if kept_by is not None and kept_by.follow_children:
                found = _once_each((kept_by, *found))
            if found != descended.get(facts.key, ()):
                descended[facts.key] = found
                handed_on[facts.key.pid] = _once_each((*followed[facts.key], *found))
                is_changed = True
    return descended


def _once_each(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple({rule.name: rule for rule in rules}.values())


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of a process.

    Attributes:
        stat: at the last scan.
        facts: made then.
        scans: since all of it was read.
    """

    stat: ProcessStat
    facts: ProcessFacts
    scans: int


class ProcessReader:
    """Reads the facts of all processes; of those that it knows, only what changes all the time.

    A scan takes some 20 us for each process that is known, 200 us for a new one.

    Args:
        proc: root of the proc file system.
        list_pids: lists all processes.
        now: monotonic time in seconds.
    """

    def __init__(
        self,
        proc: Path = PROC,
        list_pids: Callable[[], list[int]] = psutil.pids,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = proc
        self._list_pids = list_pids
        self._now = now
        self._known: dict[int, _Known] = {}
        self._scanned_seconds: float | None = None
        self._users: dict[int, str] = {}
        self._unknown_until: dict[int, float] = {}

    def scan(self) -> list[ProcessFacts]:
        """Read all processes; kernel threads, the dead and what an exec is making are left out.

        Of a process that is known, what it was before an exec is told until that is done.
        """
        now_seconds = self._now()
        before, self._scanned_seconds = self._scanned_seconds, now_seconds
        elapsed = now_seconds - before if before is not None else None
        known: dict[int, _Known] = {}
        for pid in self._list_pids():
            try:
                stat, old = read_stat(pid, self._proc), self._known.get(pid)
                if old is not None and old.stat.start_ticks != stat.start_ticks:
                    old = None
                if not (stat.is_kernel_thread or stat.is_dead or (stat.is_half_made and not old)):
                    known[pid] = self._read(stat, old, elapsed)
            except (*GONE, ValueError):  # it has ended meanwhile
                continue
            except OSError:  # no descriptor is left, or the like: it may well be there
                if pid in self._known:
                    known[pid] = self._known[pid]
        self._known = known
        return [each.facts for each in known.values()]

    def _read(self, stat: ProcessStat, old: _Known | None, elapsed: float | None) -> _Known:
        """What is known of one process after this scan."""
        if old is None:
            return _Known(stat, self._read_all(stat, None), 0)
        ticks = (stat.user_ticks + stat.system_ticks) - (
            old.stat.user_ticks + old.stat.system_ticks
        )
        share = ticks / os.sysconf("SC_CLK_TCK") / elapsed if elapsed else None
        facts = replace(old.facts, parent_pid=stat.parent_pid, cpu_share=share)
        if stat.is_half_made:
            return _Known(stat, facts, _READ_AGAIN_SCANS)
        if old.stat.command != stat.command or old.scans >= _READ_AGAIN_SCANS:
            return _Known(stat, self._read_all(stat, share), 0)
        return _Known(stat, facts, old.scans + 1)

    def _read_all(self, stat: ProcessStat, cpu_share: float | None) -> ProcessFacts:
        folder = self._proc / str(stat.pid)
        uid = read_status(stat.pid, self._proc).uid
        return ProcessFacts(
            key=ProcessKey(stat.pid, stat.start_ticks),
            parent_pid=stat.parent_pid,
            command=stat.command,
            command_line=_read_command_line(folder / "cmdline"),
            uid=uid,
            user=self._user(uid),
            cgroup=_read_cgroup(folder / "cgroup"),
            cpu_share=cpu_share,
        )

    def _user(self, uid: int) -> str:
        if uid not in self._users and self._now() >= self._unknown_until.get(uid, -math.inf):
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:  # or who knows it cannot be asked now
                self._unknown_until[uid] = self._now() + _UNKNOWN_USER_SECONDS
        return self._users.get(uid, str(uid))


def _read_command_line(path: Path) -> str:
    """The first words, with spaces between them; a process may have megabytes of them."""
    with path.open("rb", buffering=0) as file:
        words = file.read(_COMMAND_LINE_BYTES)
    return valid_text(words.replace(b"\0", b" ")).strip()


def _read_cgroup(path: Path) -> str:
    """The group in the unified hierarchy, else in systemd's or the first one."""
    try:
        lines = [line.split(":", 2) for line in valid_text(path.read_bytes()).split("\n")[:-1]]
    except OSError:
        return ""
    groups = {controllers: group for _, controllers, group in lines}
    first = next(iter(groups.values()), "")
    for controllers in ("", "name=systemd"):
        if groups.get(controllers, "/") != "/":
            return groups[controllers]
    return first
