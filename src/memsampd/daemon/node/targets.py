"""All processes that a node observes: those that rules choose, and those that users asked for."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from memsampd.daemon.config import AccessChoice, SessionConfig
from memsampd.daemon.node.attachment import Common
from memsampd.daemon.node.budget import Costs, Rotation
from memsampd.daemon.node.config import (
    USER_RULE,
    NodeConfig,
    Rule,
    SessionOptions,
    session_config,
)
from memsampd.daemon.node.discovery import (
    Found,
    ProcessFacts,
    ProcessKey,
    ProcessReader,
    choose,
)
from memsampd.daemon.node.peers import Peer, peer_of
from memsampd.daemon.node.protocol import RefusedError
from memsampd.daemon.node.state import AskedFor, StateFile
from memsampd.daemon.node.target import Target, Wanted, logged_only
from memsampd.errors import CapabilityError, MemsampdError, TargetError, UsageError
from memsampd.names import HELPER_PREFIX
from memsampd.sampler.process.identity import is_there

logger = logging.getLogger(__name__)

_TARGETS_OF_USER = 16


class Targets:
    """Begins and ends to observe processes, and gives them their turns.

    Args:
        config: the configuration.
        common: what they share.
        state: what users asked for outlives the daemon there.
        reader: reads processes.

    Attributes:
        left_out: processes that rules match, but for which there was no room.
        ended: targets that have ended, or were let go.
    """

    def __init__(
        self, config: NodeConfig, common: Common, state: StateFile, reader: ProcessReader
    ) -> None:
        self.left_out = self.ended = 0
        self._config = config
        self._common = common
        self._state = state
        self._reader = reader
        self._rotation = Rotation(config.budget.profiled_targets, config.budget.turn_seconds)
        self._targets: dict[ProcessKey, Target] = {}
        self._let_go: set[ProcessKey] = set()  # by a user, though a rule chooses it
        # Where users want accesses of what rules choose to come from; while such a process lives.
        self._wishes: dict[ProcessKey, AskedFor] = {}
        self._ended_costs = Costs()

    def __iter__(self) -> Iterator[Target]:
        """All of them, in order."""
        return iter([self._targets[key] for key in sorted(self._targets)])

    # -- turns ---------------------------------------------------------------------------------

    def next_due(self) -> float:
        """When the next one is to have its turn, monotonic time."""
        return min((each.next_turn_seconds for each in self._targets.values()), default=math.inf)

    def take_turns(self, most_seconds: float, pace: float = 1.0) -> None:
        """Give targets the turns that are due, those first that have waited longest.

        Args:
            most_seconds: so long at most, but one in any case: there is more to do than this.
            pace: by how much turns are to be rarer than usual.
        """
        began = time.monotonic()
        targets = [each for each in self._targets.values() if each.next_turn_seconds <= began]
        for target in sorted(targets, key=lambda each: each.next_turn_seconds):
            if not target.turn(time.monotonic(), pace):
                self._remove(target, ended=True)
            if time.monotonic() - began >= most_seconds:
                break

    def share_out(self, now_seconds: float, burst_seconds: float) -> None:
        """Say whose turn it is to have bursts.

        Args:
            now_seconds: monotonic time.
            burst_seconds: for which the budget has allowed bursts so far: else turns do not pass.
        """
        candidates = {
            key: candidate
            for key, target in self._targets.items()
            if (candidate := target.candidate(now_seconds)) is not None
        }
        chosen = self._rotation.turn(burst_seconds, candidates)
        for key, target in self._targets.items():
            target.has_bursts = key in chosen
            target.burst_share = 1 / len(chosen) if key in chosen else 0.0

    def costs(self) -> Costs:
        """What observing has cost so far, as far as it was done for a target."""
        return sum((each.costs() for each in self._targets.values()), start=self._ended_costs)

    # -- chosen by rules -----------------------------------------------------------------------

    def scan(self) -> None:
        """Look for processes that rules choose, and let go of those that they no longer do."""
        processes = self._reader.scan()
        kept = {
            key: target.wanted.rule
            for key, target in self._targets.items()
            if target.wanted.asked_by is None
        }
        others = [each for each in processes if not _is_ours(each) and each.key not in self._let_go]
        asked_for = self._targets.keys() - kept.keys()
        room = max(self._config.budget.targets - len(asked_for), 0)
        choice = choose(self._config.rules, others, kept, room, asked_for)
        self.left_out = choice.left_out
        for key, target in tuple(self._targets.items()):
            asked_by = target.wanted.asked_by
            stays = key in choice.found if asked_by is None else _may_have(asked_by, key)
            if not stays:
                self._remove(target, ended=False)
        for key, found in choice.found.items():
            self._take(key, found)
        self._let_go &= {each.key for each in processes}
        self._wishes = {
            key: each for key, each in self._wishes.items() if is_there(key.pid, key.start_ticks)
        }

    def _take(self, key: ProcessKey, found: Found) -> None:
        """Observe what a rule chose."""
        known = self._targets.get(key)
        if known is not None and known.wanted.rule == found.rule.name:
            return
        wanted = self._chosen(key, found.rule)
        if known is None:
            self._add(wanted)
        elif known.wanted.config == wanted.config:
            known.wanted = wanted
        else:  # a session has most of its settings for good
            self._remove(known, ended=False)
            self._add(wanted)

    def _chosen(self, key: ProcessKey, rule: Rule) -> Wanted:
        """What a rule wants, but for what somebody does who may have the process."""
        wish = self._wishes.get(key)
        # It may have become another program since they said so.
        accesses = wish.accesses if wish and _may_have(peer_of(wish.uid, wish.gid), key) else None
        config = self._settings(key, rule.session, accesses)
        return Wanted(key, rule.name, config, accesses=accesses)

    def _settings(
        self, key: ProcessKey, own: SessionOptions, accesses: AccessChoice | None
    ) -> SessionConfig:
        """Settings with what somebody chose once, unless the configuration excludes that now."""
        try:
            chosen = msgspec.structs.replace(own, accesses=accesses or own.accesses)
            return session_config(self._config.session, chosen)
        except UsageError as error:
            what = f"{accesses}, as a user chose: {error.cause}"
            logger.warning("accesses of process %d do not come from %s", key.pid, what)
            return session_config(self._config.session, own)

    def have_forked(self) -> bool:
        """Whether one whose rule follows children has forked since this was asked last."""
        following = {rule.name for rule in self._config.rules if rule.follow_children}
        forked = False
        for target in self._targets.values():
            children, target.children = target.children, []
            forked = forked or (bool(children) and target.wanted.rule in following)
        return forked

    def use(self, config: NodeConfig) -> None:
        """Go on with another configuration."""
        self._config = config
        self._rotation.slots = config.budget.profiled_targets
        self._rotation.turn_seconds = config.budget.turn_seconds
        for target in self._targets.values():
            with logged_only(f"changing how process {target.key.pid} is observed"):
                self._follow_configuration(target)

    def _follow_configuration(self, target: Target) -> None:
        """Of a session's settings, where accesses come from changes while it goes on."""
        wanted = target.wanted
        options = {rule.name: rule.session for rule in self._config.rules}
        own = options.get(wanted.rule, SessionOptions())
        choice = wanted.accesses or own.accesses or self._config.session.accesses or "auto"
        if choice == wanted.config.accesses:
            return
        try:
            target.change_accesses(choice)
        except MemsampdError as error:
            pid = target.key.pid
            logger.warning("accesses of process %d come from where they did: %s", pid, error)

    # -- asked for by users --------------------------------------------------------------------

    def seen_by(self, peer: Peer) -> list[Target]:
        """Targets that somebody may know of, in order."""
        return [each for each in self if peer.may_have(each.key.pid, each.key.start_ticks)]

    def ask_for(self, key: ProcessKey, peer: Peer, accesses: AccessChoice | None) -> bool:
        """Observe a process for somebody who may have it.

        Args:
            key: the process.
            peer: who asks.
            accesses: where they are to come from; None: as the configuration says.

        Returns:
            Whether it was not observed before.

        Raises:
            MemsampdError: it cannot be observed so.
        """
        self._let_go.discard(key)
        known = self._targets.get(key)
        if known is None:
            self._begin(key, peer, accesses)
        elif accesses is not None:
            known.change_accesses(accesses)
            known.wanted = replace(known.wanted, accesses=accesses)
            if known.wanted.asked_by is None:
                self._wishes[key] = AskedFor(
                    key.pid, key.start_ticks, peer.uid, peer.gid, accesses, is_wish=True
                )
            self._keep_asked_for()
        return known is None

    def _begin(self, key: ProcessKey, peer: Peer, accesses: AccessChoice | None) -> None:
        self._check_room(peer)
        config = session_config(self._config.session, SessionOptions(accesses=accesses))
        target = self._add(Wanted(key, USER_RULE, config, peer, accesses))
        if not target.turn(time.monotonic()):
            self._remove(target, ended=True)
            check_owner(peer, key.pid)
            raise TargetError(f"process {key.pid} is gone", "look it up with ps or pgrep")
        status = target.status()
        if status.state == "failed":
            self._remove(target, ended=False)
            raise TargetError(status.reason, status.remedy)
        self._keep_asked_for()

    def _check_room(self, peer: Peer) -> None:
        if len(self._targets) >= self._config.budget.targets:
            raise RefusedError(
                f"{len(self._targets)} targets are observed already",
                "detach one, or raise targets in [budget]",
            )
        askers = (each.wanted.asked_by for each in self._targets.values())
        theirs = sum(each is not None and each.uid == peer.uid for each in askers)
        if not peer.is_privileged and theirs >= _TARGETS_OF_USER:
            raise RefusedError(f"you have asked for {theirs} targets already", "detach one")

    def let_go(self, pid: int, peer: Peer) -> Target:
        """Observe a process no more, whoever chose it.

        Raises:
            TargetError: it is not observed, or not theirs.
        """
        target = next((each for key, each in self._targets.items() if key.pid == pid), None)
        if target is None or not peer.may_have(pid):
            raise TargetError(
                f"process {pid} is not observed", "memsampd list shows those that are"
            )
        self._let_go.add(target.key)  # a rule may choose it, too
        self._remove(target, ended=False)
        if self._wishes.pop(target.key, None) is not None:
            self._keep_asked_for()
        return target

    def _keep_asked_for(self) -> None:
        asked_for = (
            AskedFor(
                each.key.pid,
                each.key.start_ticks,
                asked_by.uid,
                asked_by.gid,
                each.wanted.accesses,
            )
            for each in self._targets.values()
            if (asked_by := each.wanted.asked_by) is not None
        )
        self._state.write((*asked_for, *self._wishes.values()))

    def take_up(self) -> None:
        """Observe what was asked for before a restart, where it still runs."""
        for each in self._state.read():
            peer = peer_of(each.uid, each.gid)
            if not is_there(each.pid, each.start_ticks):
                continue
            if each.is_wish:  # whose it is is looked at when a rule chooses it
                self._wishes[each.key] = each
            elif not _may_have(peer, each.key):
                logger.info("process %d is not taken up: it is not the user's now", each.pid)
            else:
                with logged_only(f"taking up process {each.pid}"):
                    config = self._settings(each.key, SessionOptions(), each.accesses)
                    self._add(Wanted(each.key, USER_RULE, config, peer, each.accesses))

    # -- begin and end -------------------------------------------------------------------------

    def _add(self, wanted: Wanted) -> Target:
        target = self._targets[wanted.key] = Target(wanted, self._common, time.monotonic())
        return target

    def _remove(self, target: Target, *, ended: bool) -> None:
        """Observe a target no more; if it was asked for, not after a restart either."""
        self._end(target, ended=ended)
        if target.wanted.asked_by is not None:
            self._keep_asked_for()

    def _end(self, target: Target, *, ended: bool) -> None:
        del self._targets[target.key]
        with logged_only(f"the end of process {target.key.pid}"):
            target.close(ended=ended)
        costs = target.costs()
        self._ended_costs += costs
        self._rotation.leave(target.key, costs.of_bursts_seconds)
        self.ended += 1

    def close(self) -> None:
        """Let all of them go; what was asked for is taken up next time."""
        for target in tuple(self._targets.values()):
            self._end(target, ended=False)


def _may_have(peer: Peer, key: ProcessKey) -> bool:
    """Whether somebody may have a process observed, or that cannot be told: its turns ask again."""
    try:
        return peer.may_have(key.pid, key.start_ticks)
    except CapabilityError:
        return True


def check_owner(peer: Peer, pid: int) -> None:
    """See that somebody may have a process observed.

    Raises:
        RefusedError: it is not theirs, or there is none: they are not told which.
    """
    if not peer.may_have(pid):
        raise RefusedError(
            f"process {pid} is not yours", "ask for one of your own, or as root (sudo)"
        )


def _is_ours(process: ProcessFacts) -> bool:
    """Whether it is the daemon, a replica or the web process."""
    own = os.getpid()
    is_helper = process.parent_pid == own and process.command.startswith(HELPER_PREFIX)
    return is_helper or process.key.pid == own
