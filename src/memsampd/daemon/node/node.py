"""The daemon's loop: all targets, in turns, in one thread."""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from memsampd import __version__
from memsampd.daemon.node.attachment import Common
from memsampd.daemon.node.budget import Costs, NodeBudget
from memsampd.daemon.node.commands import Commands
from memsampd.daemon.node.config import ConfigError, NodeConfig
from memsampd.daemon.node.control import ControlServer
from memsampd.daemon.node.discovery import ProcessReader
from memsampd.daemon.node.notify import Notifier
from memsampd.daemon.node.passes import LongestPass
from memsampd.daemon.node.peers import Peer
from memsampd.daemon.node.protocol import Document, Request
from memsampd.daemon.node.state import StateFile
from memsampd.daemon.node.target import logged_only
from memsampd.daemon.node.targets import Targets
from memsampd.daemon.own_cpu import HelperCpu, ProcessCpu
from memsampd.daemon.priority import yield_to_others
from memsampd.daemon.store.database import ProfileStore
from memsampd.daemon.surroundings import Surroundings
from memsampd.errors import TargetError
from memsampd.exporters.protocols import ApartExporter, Exporter, NodeExporter
from memsampd.exporters.snapshot import NodeStatus
from memsampd.sampler.process.cputime import process_cpu_ns

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_LONGEST_SILENCE_SECONDS = 30.0  # /healthz takes twice that for a hang
# Clients and the service manager are not to wait longer for targets' turns.
_TURNS_SECONDS = 0.5
# Looking for processes may take this part of the time budget; it is done more rarely then.
_SCAN_PART = 0.1


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

    Attributes:
        targets: what it observes.

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
        self._notifier = notifier
        self._read_again = read_again
        self._store = store
        self._control = ControlServer(socket_path, self.answer)  # another daemon may serve it
        self._process = psutil.Process()
        self._last_figures = 0, 0, 0
        self._starter = ThreadPoolExecutor(1, "starter")
        self._budget = NodeBudget(
            config.budget.own_cpu, config.budget.holds, now_seconds, time.process_time()
        )
        common = Common(
            Surroundings.read(_with_an_account_of_its_own()),
            lambda: self._budget.allows_bursts,
            lambda: self._config.publish_seconds,
            self._exporters,
            lambda make: self._starter.submit(make).result(),
            store,
        )
        self.targets = Targets(config, common, state, reader or ProcessReader())
        self._commands = Commands(self.targets, self.status, self.reload)
        self._helper_cpu = HelperCpu(_cpu_seconds)
        self._started_unix_seconds = time.time()
        self._scan_due = self._tick_due = self._publish_due = now_seconds
        self._scan_allowed = self._ticked_seconds = now_seconds
        self._burst_seconds = 0.0  # for which bursts were allowed so far
        self._longest_pass = LongestPass()
        self._reload_trouble = ""
        self._is_stopping = self._is_reloading = False
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

    def answer(self, request: Request, peer: Peer) -> Document:
        """Do what a client asks for.

        Raises:
            MemsampdError: it is not done.
        """
        return self._commands.answer(request, peer)

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
            self.targets.take_up()
            self._notifier.ready()
            while not self._is_stopping and (now_seconds := time.monotonic()) < end:
                pause = min(self._next_due(), end) - now_seconds
                poll.poll(max(pause, 0.0) * 1000)
                began = time.monotonic()
                self._turn()
                now_seconds = time.monotonic()
                self._longest_pass.note(now_seconds, now_seconds - began)

    def _next_due(self) -> float:
        return min(self._scan_due, self._tick_due, self.targets.next_due())

    def _turn(self) -> None:
        """Do all that is due."""
        with suppress(BlockingIOError):
            self._awaken.recv(4096)
        self._control.serve()
        if self._is_reloading:
            self._is_reloading = False
            with logged_only("reading the configuration again"):
                self._reload()
        self.targets.take_turns(_TURNS_SECONDS, self._budget.pace)
        if time.monotonic() >= self._scan_due:
            self._scan_due = time.monotonic() + self._config.scan_seconds
            with logged_only("looking for processes"):
                self._scan()
        if time.monotonic() >= self._tick_due:
            self._tick_due = time.monotonic() + _TICK_SECONDS
            with logged_only("sharing out the budget"):
                self._tick()
        if time.monotonic() >= self._publish_due:
            self._publish_due = time.monotonic() + self._publish_seconds()
            with logged_only("telling the node's state"):
                self._publish_node()

    def _tick(self) -> None:
        """Once a second: budgets, who has bursts, what is told."""
        now_seconds = time.monotonic()
        elapsed = now_seconds - self._ticked_seconds
        self._ticked_seconds = now_seconds
        costs = self._costs()
        self._budget.tell(
            now_seconds, costs.own_cpu_seconds, costs.burst_cpu_seconds, costs.stop_seconds
        )
        if self._budget.allows_bursts:
            self._burst_seconds += elapsed
        self.targets.share_out(now_seconds, self._burst_seconds)
        if self.targets.have_forked():  # do not wait for the next scan
            soon = max(time.monotonic() + _TICK_SECONDS, self._scan_allowed)
            self._scan_due = min(self._scan_due, soon)

    def _scan(self) -> None:
        """Look for processes, and see that this takes its part of the CPU time only."""
        before = time.thread_time()
        self.targets.scan()
        seconds = time.thread_time() - before
        pause = seconds / (_SCAN_PART * self._config.budget.own_cpu)
        self._scan_allowed = time.monotonic() + pause
        self._scan_due = max(time.monotonic() + self._config.scan_seconds, self._scan_allowed)

    def _publish_seconds(self) -> float:
        """How often to tell about the node: twice as often as whoever watches wants to hear."""
        usual = min(self._config.publish_seconds, _LONGEST_SILENCE_SECONDS)
        watchdog = self._notifier.watchdog_seconds
        return usual if watchdog is None else min(usual, watchdog / 2)

    def _publish_node(self) -> None:
        status = self.status()
        counts = ", ".join(f"{count} {state}" for state, count in status.by_state().items())
        self._notifier.alive(f"{len(status.targets)} targets: {counts}")
        for exporter in self._exporters:
            if isinstance(exporter, NodeExporter):
                with logged_only("publishing the node's state"):
                    exporter.publish_node(status)

    def _close(self) -> None:
        """Let all targets go, and end everything; what was asked for is taken up next time."""
        self._is_stopping = True
        self._notifier.stopping()
        self._control.close()
        self.targets.close()
        self._starter.shutdown()
        if self._store is not None:
            self._store.close()
        for end in (self._awaken, self._waken):
            end.close()

    # -- costs ---------------------------------------------------------------------------------

    def _costs(self) -> Costs:
        """What observing has cost so far, own CPU time being that of all processes."""
        total = self.targets.costs()
        apart = (each.pid for each in self._exporters if isinstance(each, ApartExporter))
        helpers = self._helper_cpu.used_seconds(pid for pid in apart if pid is not None)
        own = time.process_time() + total.replica_cpu_seconds + helpers
        return replace(total, own_cpu_seconds=own)

    def status(self) -> NodeStatus:
        """How the node fares."""
        budget, costs = self._budget, self._costs()
        rss_bytes, open_descriptors, threads = self._own_figures()
        return NodeStatus(
            version=__version__,
            pid=self._process.pid,
            started_unix_seconds=self._started_unix_seconds,
            time_seconds=time.monotonic(),
            targets=tuple(each.status() for each in self.targets),
            left_out=self.targets.left_out,
            own_cpu_seconds=costs.own_cpu_seconds,
            own_cpu_share=budget.own_cpu.recent_share,
            own_cpu_budget_share=budget.own_cpu.share,
            stop_seconds=costs.stop_seconds,
            stop_share=budget.holds.recent_share,
            stop_budget_share=budget.holds.share,
            rss_bytes=rss_bytes,
            open_descriptors=open_descriptors,
            threads=threads,
            loop_seconds=self._longest_pass.seconds,
            ended_targets=self.targets.ended,
            reload_trouble=self._reload_trouble,
            store_trouble="" if self._store is None else self._store.trouble,
        )

    def _own_figures(self) -> tuple[int, int, int]:
        """Memory of this process in bytes, its descriptors and threads.

        As they were last where no descriptor is left to look with.
        """
        with suppress(OSError, psutil.Error), self._process.oneshot():
            process = self._process
            rss_bytes = process.memory_info().rss
            self._last_figures = rss_bytes, process.num_fds(), process.num_threads()
        return self._last_figures

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
        self._scan_due = time.monotonic()
        self.targets.use(config)
        logger.info("the configuration was read again: %d rules", len(config.rules))


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
