"""The daemon's loop: all targets, in turns, in one thread."""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil

from memsampd import __version__
from memsampd.daemon.config import AccessChoice
from memsampd.daemon.node.budget import NodeBudget, Rotation
from memsampd.daemon.node.config import ConfigError, NodeConfig, SessionOptions, session_config
from memsampd.daemon.node.control import (
    ControlServer,
    Document,
    Peer,
    RefusedError,
    Request,
    peer_of,
)
from memsampd.daemon.node.discovery import ProcessKey, ProcessReader, choose
from memsampd.daemon.node.notify import Notifier
from memsampd.daemon.node.state import AskedFor, StateFile
from memsampd.daemon.node.targets import EXEC_SECONDS, Costs, Target, Wanted, logged_only
from memsampd.daemon.own_cpu import HelperCpu, ProcessCpu
from memsampd.daemon.priority import yield_to_others
from memsampd.daemon.store.database import ProfileStore
from memsampd.daemon.surroundings import Surroundings
from memsampd.errors import MemsampdError, TargetError, UsageError
from memsampd.exporters.documents import target_document, target_id
from memsampd.exporters.protocols import ApartExporter, Exporter, NodeExporter
from memsampd.exporters.snapshot import NodeStatus
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import read_stat
from memsampd.sampler.process.target import check_target

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_PUBLISH_SECONDS = 5.0
# Clients and the service manager are not to wait longer for targets' turns.
_TURNS_SECONDS = 0.5
# Looking for processes may take this part of the time budget; it is done more rarely then.
_SCAN_PART = 0.1
USER_RULE = "user"
_TARGETS_OF_USER = 16


class Node:
    """Observes what rules choose and users ask for, until :meth:`stop`.

    Args:
        config: the configuration.
        exporters: are shown all targets.
        socket_path: where to take commands.
        state: what outlives the daemon.
        notifier: tells the service manager.
        read_again: reads the configuration again.
        reader: reads processes.
        store: what is kept of programs; None: nothing is.

    Raises:
        CapabilityError: the socket cannot be served.
    """

    def __init__(
        self,
        config: NodeConfig,
        exporters: Sequence[Exporter],
        socket_path: Path,
        state: StateFile,
        notifier: Notifier,
        read_again: Callable[[], NodeConfig],
        reader: ProcessReader | None = None,
        store: ProfileStore | None = None,
    ) -> None:
        now_seconds = time.monotonic()
        self._config = config
        self._exporters = tuple(exporters)
        self._state = state
        self._notifier = notifier
        self._read_again = read_again
        self._reader = reader or ProcessReader()
        self._store = store
        self._control = ControlServer(socket_path, self.answer)
        self._process = psutil.Process()
        self._around = Surroundings.read(_with_an_account_of_its_own())
        self._budget = NodeBudget(
            config.budget.own_cpu, config.budget.holds, now_seconds, time.process_time()
        )
        self._helper_cpu = HelperCpu(_cpu_seconds)
        self._rotation = Rotation(config.budget.profiled_targets)
        self._targets: dict[ProcessKey, Target] = {}
        self._let_go: set[ProcessKey] = set()  # by a user, though a rule chooses it
        self._ended = Costs()
        self._ended_targets = self._left_out = 0
        self._started_unix_seconds = time.time()
        self._scan_due = self._tick_due = self._publish_due = now_seconds
        self._scan_allowed = self._ticked_seconds = now_seconds
        self._burst_seconds = 0.0  # for which bursts were allowed so far
        self._longest_turn = (now_seconds, 0.0)
        self._reload_trouble = ""
        self._is_stopping = self._is_reloading = False
        self._starter = ThreadPoolExecutor(1, "starter")
        self._awaken, self._waken = socket.socketpair()
        for end in (self._awaken, self._waken):
            end.setblocking(False)

    # -- from elsewhere ------------------------------------------------------------------------

    def stop(self) -> None:
        """End soon; from a signal handler, or from any thread."""
        self._is_stopping = True
        self._wake()

    def reload(self) -> None:
        """Read the configuration again soon; from a signal handler, or from any thread."""
        self._is_reloading = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waken.send(b".")

    # -- the loop ------------------------------------------------------------------------------

    def run(self, duration_seconds: float | None = None) -> None:
        """Observe until told to stop; all targets are then as they were.

        Args:
            duration_seconds: stop by itself after so long.
        """
        end = time.monotonic() + duration_seconds if duration_seconds is not None else float("inf")
        poll = select.poll()
        for source in (self._control, self._awaken):
            poll.register(source, select.POLLIN)
        with ExitStack() as stack:
            stack.callback(self._close)
            # A thread has the priority of the one that starts it: tracing threads must not wait.
            self._starter.submit(int).result()
            yield_to_others(None)
            self._take_up()
            self._notifier.ready()
            while not self._is_stopping and (now_seconds := time.monotonic()) < end:
                pause = min(self._next_due(), end) - now_seconds
                poll.poll(max(pause, 0.0) * 1000)
                self._turn()

    def _next_due(self) -> float:
        turns = (target.next_turn_seconds for target in self._targets.values())
        return min(self._scan_due, self._tick_due, *turns)

    def _turn(self) -> None:
        """Do all that is due."""
        with suppress(BlockingIOError):
            self._awaken.recv(4096)
        self._control.serve()
        if self._is_reloading:
            self._is_reloading = False
            with logged_only("reading the configuration again"):
                self._reload()
        began = time.monotonic()
        self.take_turns(_TURNS_SECONDS)
        self._note_turn(time.monotonic() - began)
        if time.monotonic() >= self._scan_due:
            self._scan_due = time.monotonic() + self._config.scan_seconds
            with logged_only("looking for processes"):
                self.scan()
        if time.monotonic() >= self._tick_due:
            self._tick_due = time.monotonic() + _TICK_SECONDS
            with logged_only("sharing out the budget"):
                self._tick()
        if time.monotonic() >= self._publish_due:
            self._publish_due = time.monotonic() + self._publish_seconds()
            with logged_only("telling the node's state"):
                self._publish_node()

    def take_turns(self, most_seconds: float) -> None:
        """Give targets the turns that are due, those first that have waited longest.

        Args:
            most_seconds: so long at most, but one in any case: there is more to do than this.
        """
        began = time.monotonic()
        targets = [each for each in self._targets.values() if each.next_turn_seconds <= began]
        for target in sorted(targets, key=lambda each: each.next_turn_seconds):
            now_seconds = time.monotonic()
            if not target.turn(now_seconds, self._budget.pace):
                self._remove(target, ended=True)
            if time.monotonic() - began >= most_seconds:
                break

    def _note_turn(self, seconds: float) -> None:
        now_seconds = time.monotonic()
        since, longest = self._longest_turn
        if seconds >= longest or now_seconds - since >= 60.0:
            self._longest_turn = now_seconds, seconds

    def _tick(self) -> None:
        """Once a second: budgets, who has bursts, what is told."""
        now_seconds = time.monotonic()
        elapsed = now_seconds - self._ticked_seconds
        self._ticked_seconds = now_seconds
        costs = self._costs()
        self._budget.tell(
            now_seconds, costs.own_cpu_seconds, costs.burst_cpu_seconds, costs.stop_seconds
        )
        candidates = {
            key: candidate
            for key, target in self._targets.items()
            if (candidate := target.candidate(now_seconds)) is not None
        }
        if self._budget.allows_bursts:  # else turns do not pass
            self._burst_seconds += elapsed
        chosen = self._rotation.turn(self._burst_seconds, candidates)
        for key, target in self._targets.items():
            target.has_bursts = key in chosen
            target.burst_share = 1 / len(chosen) if key in chosen else 0.0
        self._look_at_children()

    def _publish_seconds(self) -> float:
        """How often to tell about the node: twice as often as the service manager wants to hear."""
        watchdog = self._notifier.watchdog_seconds
        return _PUBLISH_SECONDS if watchdog is None else min(_PUBLISH_SECONDS, watchdog / 2)

    def _publish_node(self) -> None:
        status = self.status()
        for exporter in self._exporters:
            if isinstance(exporter, NodeExporter):
                with logged_only("publishing the node's state"):
                    exporter.publish_node(status)
        counts = ", ".join(f"{count} {state}" for state, count in status.by_state().items())
        self._notifier.alive(f"{len(status.targets)} targets: {counts}")

    def _close(self) -> None:
        """Let all targets go, and end everything; what was asked for is taken up next time."""
        self._is_stopping = True
        self._notifier.stopping()
        self._control.close()
        for target in tuple(self._targets.values()):
            self._remove(target, ended=False)
        self._starter.shutdown()
        if self._store is not None:
            self._store.close()
        for end in (self._awaken, self._waken):
            end.close()

    # -- targets -------------------------------------------------------------------------------

    def scan(self) -> None:
        """Look for processes that rules choose, and let go of those that they no longer do."""
        before = time.thread_time()
        processes = self._reader.scan()
        kept = {
            key: target.wanted.rule
            for key, target in self._targets.items()
            if target.wanted.asked_by is None
        }
        own = os.getpid()
        others = [
            each for each in processes if each.key.pid != own and each.key not in self._let_go
        ]
        asked_for = self._targets.keys() - kept.keys()
        room = max(self._config.budget.targets - len(asked_for), 0)
        choice = choose(self._config.rules, others, kept, room, asked_for)
        self._left_out = choice.left_out
        for key, target in tuple(self._targets.items()):
            asked_by = target.wanted.asked_by
            if asked_by is None:
                stays = key in choice.found
            else:
                stays = asked_by.may_have(key.pid, key.start_ticks)
            if not stays:
                self._remove(target, ended=False)
        for key, found in choice.found.items():
            known = self._targets.get(key)
            if known is None:
                config = session_config(self._config.session, found.rule.session)
                self._add(Wanted(key, found.rule.name, config))
            elif known.wanted.asked_by is None and known.wanted.rule != found.rule.name:
                known.wanted = replace(known.wanted, rule=found.rule.name)
                self._follow_configuration(known)
        self._let_go &= {each.key for each in processes}
        seconds = time.thread_time() - before
        self._scan_allowed = before_next = time.monotonic() + seconds / (
            _SCAN_PART * self._config.budget.own_cpu
        )
        self._scan_due = max(time.monotonic() + self._config.scan_seconds, before_next)

    def _look_at_children(self) -> None:
        """A target whose rule follows children has forked: do not wait for the next scan."""
        following = {rule.name for rule in self._config.rules if rule.follow_children}
        forked = False
        for target in self._targets.values():
            children, target.children = target.children, []
            forked = forked or (bool(children) and target.wanted.rule in following)
        if forked:
            soon = max(time.monotonic() + _TICK_SECONDS, self._scan_allowed)
            self._scan_due = min(self._scan_due, soon)

    def _add(self, wanted: Wanted) -> Target:
        target = Target(
            wanted,
            self._around,
            lambda: self._budget.allows_bursts,
            self._exporters,
            lambda make: self._starter.submit(make).result(),
            len(self._around.machine.cpus),
            time.monotonic(),
            self._store,
        )
        self._targets[wanted.key] = target
        return target

    def _remove(self, target: Target, *, ended: bool) -> None:
        """Observe a target no more."""
        del self._targets[target.key]
        with logged_only(f"the end of process {target.key.pid}"):
            target.close(ended=ended)
        costs = target.costs()
        self._ended += costs
        self._rotation.leave(target.key, costs.of_bursts_seconds)
        self._ended_targets += 1
        if target.wanted.asked_by is not None and not self._is_stopping:
            self._keep_asked_for()

    # -- costs ---------------------------------------------------------------------------------

    def _costs(self) -> Costs:
        """What observing has cost so far, own CPU time being that of all processes."""
        total = self._ended
        for target in self._targets.values():
            total += target.costs()
        apart = (each.pid for each in self._exporters if isinstance(each, ApartExporter))
        helpers = self._helper_cpu.used_seconds(pid for pid in apart if pid is not None)
        own = time.process_time() + total.replica_cpu_seconds + helpers
        return replace(total, own_cpu_seconds=own)

    def status(self) -> NodeStatus:
        """How the node fares."""
        budget, costs = self._budget, self._costs()
        with self._process.oneshot():
            return NodeStatus(
                version=__version__,
                pid=self._process.pid,
                started_unix_seconds=self._started_unix_seconds,
                time_seconds=time.monotonic(),
                targets=tuple(self._targets[key].status() for key in sorted(self._targets)),
                left_out=self._left_out,
                own_cpu_seconds=costs.own_cpu_seconds,
                own_cpu_share=budget.own_cpu.recent_share,
                own_cpu_budget_share=budget.own_cpu.share,
                stop_seconds=costs.stop_seconds,
                stop_share=budget.holds.recent_share,
                stop_budget_share=budget.holds.share,
                rss_bytes=self._process.memory_info().rss,
                open_descriptors=self._process.num_fds(),
                threads=self._process.num_threads(),
                turn_seconds=self._longest_turn[1],
                ended_targets=self._ended_targets,
                reload_trouble=self._reload_trouble,
                store_trouble="" if self._store is None else self._store.trouble,
            )

    # -- configuration -------------------------------------------------------------------------

    def _reload(self) -> None:
        """Read the configuration again; with one that cannot be used, go on as before."""
        self._notifier.reloading()
        try:
            config = self._read_again()
        except ConfigError as error:
            self._reload_trouble = str(error)
            logger.error("the configuration stays as it was: %s", error)
        else:
            self._reload_trouble = ""
            self._use(config)
        self._notifier.ready()

    def _use(self, config: NodeConfig) -> None:
        for name in ("listen", "socket", "state_dir", "store"):
            if getattr(config, name) != getattr(self._config, name):
                logger.warning("%s changes when the daemon is restarted", name)
        self._config = config
        self._budget.change(config.budget.own_cpu, config.budget.holds)
        self._rotation.slots = config.budget.profiled_targets
        self._scan_due = time.monotonic()
        for target in self._targets.values():
            with logged_only(f"changing how process {target.key.pid} is observed"):
                self._follow_configuration(target)
        logger.info("the configuration was read again: %d rules", len(config.rules))

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

    # -- commands ------------------------------------------------------------------------------

    def answer(self, request: Request, peer: Peer) -> Document:
        """Do what a client asks for.

        Raises:
            MemsampdError: it is not done.
        """
        match request.command:
            case "list":
                return {"targets": [self._document(each) for each in self._seen_by(peer)]}
            case "status":
                return {"status": self._status_document(peer)}
            case "reload":
                if not peer.is_privileged:
                    raise RefusedError(
                        "only root, or the daemon's own user, may reload", "ask as root"
                    )
                self.reload()
                return {}
            case "attach":
                return self._attach(_pid_of(request), peer, request.accesses)
            case "detach":
                return self._detach(_pid_of(request), peer)

    def _seen_by(self, peer: Peer) -> list[Target]:
        """Targets that somebody may know of, in order."""
        targets = [self._targets[key] for key in sorted(self._targets)]
        return [each for each in targets if peer.may_have(each.key.pid, each.key.start_ticks)]

    @staticmethod
    def _document(target: Target) -> Document:
        status = target.status()
        seen = target_document(target.snapshot) if target.snapshot is not None else {}
        return {
            **seen,
            "target": target_id(status.target),
            **msgspec.to_builtins(status.target),
            "state": status.state,
            "rule": status.rule,
            "reason": status.reason,
            "remedy": status.remedy,
        }

    def _status_document(self, peer: Peer) -> Document:
        status = self.status()
        seen = {target.key.pid for target in self._seen_by(peer)}
        targets = tuple(each for each in status.targets if each.target.pid in seen)
        shown = msgspec.structs.replace(status, targets=targets)
        return {**msgspec.to_builtins(shown), "by_state": shown.by_state()}

    def _attach(self, pid: int, peer: Peer, accesses: AccessChoice | None) -> Document:
        _check_owner(peer, pid)
        facts = check_target(pid, may_be_sealed=True, patience_seconds=EXEC_SECONDS)
        key = ProcessKey(facts.identity.pid, facts.identity.start_ticks)
        _check_owner(peer, pid)  # it may be another process by now, of the same number
        self._let_go.discard(key)
        known = self._targets.get(key)
        if known is None:
            self._check_room(peer)
            target = self._add(self._asked_for(key, peer, accesses))
            if not target.turn(time.monotonic()):
                self._remove(target, ended=True)
                _check_owner(peer, pid)
                raise TargetError(f"process {pid} is gone", "look it up with ps or pgrep")
            status = target.status()
            if status.state == "failed":
                self._remove(target, ended=False)
                raise TargetError(status.reason, status.remedy)
            self._keep_asked_for()
        elif accesses is not None:
            known.change_accesses(accesses)
            known.wanted = replace(known.wanted, accesses=accesses)
            self._keep_asked_for()
        return {"pid": pid, "command": facts.identity.command, "is_new": known is None}

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

    def _detach(self, pid: int, peer: Peer) -> Document:
        target = next((each for key, each in self._targets.items() if key.pid == pid), None)
        if target is None or not peer.may_have(pid):
            raise TargetError(
                f"process {pid} is not observed", "memsampd list shows those that are"
            )
        self._let_go.add(target.key)  # a rule may choose it, too
        self._remove(target, ended=False)
        return {"pid": pid, "command": target.command}

    # -- what users asked for ------------------------------------------------------------------

    def _keep_asked_for(self) -> None:
        self._state.write(
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

    def _take_up(self) -> None:
        """Observe what was asked for before a restart, where it still runs."""
        for each in self._state.read():
            peer = peer_of(each.uid, each.gid)
            with suppress(OSError):
                if read_stat(each.pid).start_ticks != each.start_ticks:
                    continue
                if not peer.may_have(each.pid, each.start_ticks):
                    logger.info("process %d is not taken up: it is not the user's now", each.pid)
                else:
                    with logged_only(f"taking up process {each.pid}"):
                        self._add(self._asked_for(each.key, peer, each.accesses))

    def _asked_for(self, key: ProcessKey, peer: Peer, accesses: AccessChoice | None) -> Wanted:
        """What somebody wants.

        Raises:
            UsageError: it does not go together with the configuration.
        """
        own = SessionOptions(accesses=accesses)
        return Wanted(key, USER_RULE, session_config(self._config.session, own), peer, accesses)


def _with_an_account_of_its_own() -> ProcessCpu:
    """Accounts of which the first, who pays for what is nobody else's, is the node's."""
    process_cpu = ProcessCpu()
    process_cpu.open()
    return process_cpu


def _cpu_seconds(pid: int) -> float | None:
    """CPU time of a process; None if it has ended."""
    try:
        return process_cpu_ns(pid) * 1e-9
    except TargetError:
        return None


def _pid_of(request: Request) -> int:
    if request.pid is None or request.pid <= 0:
        raise UsageError(f"{request.command} needs the id of a process", "give it as pid")
    return request.pid


def _check_owner(peer: Peer, pid: int) -> None:
    """Whether somebody may have a process observed.

    Raises:
        RefusedError: it is not theirs, or there is none: they are not told which.
    """
    if not peer.may_have(pid):
        raise RefusedError(
            f"process {pid} is not yours", "ask for one of your own, or as root (sudo)"
        )
