"""One profiling session: the loop around a pipeline."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.notes import NoteTeller
from memsampd.daemon.pace import Pause, hurries, is_idle, next_pause
from memsampd.daemon.priority import Contention, yield_to_others
from memsampd.daemon.session_parts import Recorder, SessionObserver, SessionParts
from memsampd.daemon.showing import Publisher, present_state
from memsampd.daemon.stopping import Stop
from memsampd.daemon.turns import Actions, Turn
from memsampd.errors import MemsampdError, TargetError
from memsampd.exporters.protocols import Exporter
from memsampd.exporters.snapshot import AddressTally, Snapshot
from memsampd.phases.unseen import LATEST
from memsampd.sampler.perf.watch import Watched, WatchOrder
from memsampd.sampler.perf.watchpoints import Watchpoints
from memsampd.sampler.process.copied import CopiedBytes
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import read_identity
from memsampd.sampler.process.mapped import MappedMemory
from memsampd.sampler.process.schedstat import ThreadTimes
from memsampd.sampler.process.status import list_threads

logger = logging.getLogger(__name__)

# Between two turns: has the target gone on to other code? And where it did so lately; where it did
# not for long a look takes as much, and finds something ever more rarely.
_GLANCE_SECONDS, _OFTEN_SECONDS, _SELDOM_SECONDS = 0.08, 0.03, 0.16
_LOOK_SECONDS = 0.05  # whether somebody has read the last state


class Session:
    """Runs until its time is up, the target ends or :meth:`stop` is called.

    Args:
        parts: what it is composed of.
        config: the user's choices.
        exporters: shown every new state.
        recorders: given every record.
        observers: told of every window.
    """

    def __init__(
        self,
        parts: SessionParts,
        config: SessionConfig,
        exporters: Sequence[Exporter] = (),
        recorders: Sequence[Recorder] = (),
        observers: Sequence[SessionObserver] = (),
    ) -> None:
        self._parts = parts
        self._config = config
        self._started_seconds = parts.started_seconds
        self._recorders = (*recorders, *parts.recorders)
        self._publisher = Publisher(exporters, self._recorders, parts)
        self._observers = tuple(observers)
        self._target = parts.target
        self._target_cpu = self._seen_cpu = parts.target_cpu_at_start  # at a turn; at a look
        self._snapshot: Snapshot | None = None  # of this turn, once anyone has asked
        self._is_alive, self._is_let_go = True, False
        self._is_over = False  # and the last state was shown
        self._lock = threading.RLock()  # of a turn, and of what follows from it
        self._stop = Stop()
        self._refused_watches: list[tuple[WatchOrder, MemsampdError]] = []
        self._contention = Contention()
        self._thread_times = ThreadTimes(parts.target.pid)
        self._thread_times.since(list_threads(parts.target.pid))
        self._memory = MappedMemory(parts.target.pid)
        self._copied = CopiedBytes(parts.target.pid)
        self._waits_for_cpu = False
        self._notes = NoteTeller(logger)  # of watchpoints

    def stop(self, reason: str) -> None:
        """End soon; may be called from a signal handler."""
        self._stop.tell(reason)

    @property
    def stops_nothing(self) -> bool:
        """Whether accesses come from watchpoints now."""
        return self._config.stops_nothing

    @property
    def parts(self) -> SessionParts:
        """What it is composed of."""
        return self._parts

    def change(self, config: SessionConfig) -> None:
        """Go on with other choices; only ``accesses`` may differ."""
        if self._parts.watchpoints is not None:
            self._parts.watchpoints.suspend()
        self._config = config

    def run(self) -> str:
        """Observe until something ends it; the target is then as it was.

        Returns:
            Why it ended, for people.
        """
        yield_to_others(self._config.niceness, preempts=not self._config.stops_nothing)
        self._parts.own_cpu.add_thread(threading.current_thread())
        try:
            while (reason := self.ending()) is None:
                self._pause()
                self.step()
                if self._publisher.is_due(is_known=self._snapshot is not None):
                    self.publish()
        finally:
            self._parts.tracer.close()
        self.finish()
        return reason

    def linger(self, seconds: float) -> None:
        """Wait until its last state has been read by all who are served, for so long at most."""
        give_up = time.monotonic() + seconds
        while self._publisher.is_unread:
            if self._stop.reason is not None or time.monotonic() >= give_up:
                return
            self._stop.wait(_LOOK_SECONDS)

    def step(self) -> None:
        """Take one turn: read what has happened, and order what follows from it."""
        with self._lock:
            for turn in self._turns():
                self._do(self._parts.pipeline.step(turn))

    def finish(self, *, observed_no_more: bool = False) -> None:
        """Take in what is left, and take no burst any more.

        Args:
            observed_no_more: exporters are to forget the target though it may live.
        """
        self._parts.tracer.close()
        if self._parts.watchpoints is not None:
            self._parts.watchpoints.close()
        self._is_let_go = observed_no_more and self._parts.handle.alive()
        self._is_alive = self._is_alive and not observed_no_more
        with self._lock:
            *earlier, last = self._turns()
            for turn in earlier:
                self._do(self._parts.pipeline.step(turn))
            self._do(self._parts.pipeline.finish(last))
            self.publish()
            self._is_over = True

    def ending(self) -> str | None:
        """Why there is to be no further turn, for people; None while there is."""
        if self._stop.reason is not None:
            return self._stop.reason
        if not self._parts.handle.alive():
            self._is_alive = False
            return "the target ended"
        limit = self._config.duration_seconds
        if limit is not None and time.monotonic() - self._started_seconds >= limit:
            return f"{limit:g} s have passed"
        return None

    @property
    def hurries(self) -> bool:
        """Whether a first burst is awaited of a target that runs: turns are to be short."""
        return hurries(self._parts.pipeline)

    def pause_seconds(self) -> float:
        """How long the next turn may wait, seconds, whatever the target does."""
        return self._next_pause().without_looks_seconds

    @property
    def ring_seconds(self) -> float:
        """For so long who keeps a CPU busy fills the buffer of its samples."""
        return self._parts.branches.ring_samples * self._parts.sampling.period_seconds

    def _next_pause(self) -> Pause:
        parts = self._parts
        return next_pause(
            parts.pipeline,
            self._config,
            self.ring_seconds,
            waits_for_cpu=self._waits_for_cpu,
            is_watching=parts.watchpoints is not None and parts.watchpoints.is_watching,
            is_shown=bool(self._observers),
        )

    def _pause(self) -> None:
        """Wait for the next turn; it comes at once where the target has gone on to other code.

        Where it did so lately, it comes as soon as a burst has, too: the next one may be of use.
        """
        began, pause = time.monotonic(), self._next_pause()
        end = began + pause.seconds
        if self._config.duration_seconds is not None:
            end = min(end, self._started_seconds + self._config.duration_seconds)
        glance = min(self._glance_seconds(), pause.look_seconds)
        while (left := end - time.monotonic()) > 0:
            if self._stop.wait(min(left, glance), self._parts.handle.fileno()):
                return
            has_passed = time.monotonic() - began >= pause.ran_seconds
            if left > glance and ((has_passed and self._has_run(pause)) or self._is_of_use()):
                return

    def _has_run(self, pause: Pause) -> bool:
        """Whether the target has run for so long, or children may have, whose time is not told."""
        if self._config.follow_forks:
            return True
        return self._present_cpu_seconds() - self._target_cpu >= pause.ran_seconds

    def _is_of_use(self) -> bool:
        """Whether a burst may be had of code that the target has gone on to, or goes on to next."""
        pipeline = self._parts.pipeline
        waits = pipeline.meets_new_code or (pipeline.awaits_burst and is_idle(pipeline))
        if waits and self._parts.tracer.has_results:
            return True
        return self._may_hurry and self._runs_new_code()

    def _present_cpu_seconds(self) -> float:
        """CPU time of the target; as it was seen last if that has gone."""
        with contextlib.suppress(TargetError):
            self._seen_cpu = process_cpu_ns(self._target.pid) * 1e-9
        return self._seen_cpu

    def _glance_seconds(self) -> float:
        if self._parts.pipeline.meets_new_code:
            return _OFTEN_SECONDS
        if not self._may_hurry:
            return math.inf
        return _GLANCE_SECONDS if self._parts.pipeline.parts.ledger.is_start else _SELDOM_SECONDS

    @property
    def _may_hurry(self) -> bool:
        pipeline = self._parts.pipeline
        return pipeline.may_hurry and not (is_idle(pipeline) or self._config.stops_nothing)

    def _runs_new_code(self) -> bool:
        with self._lock:
            return self._parts.pipeline.runs_new_code(self._parts.branches.latest(LATEST))

    def _turns(self) -> Iterator[Turn]:
        """Tell what has happened since the last turn: a turn for each program that has run."""
        parts = self._parts
        points = parts.watchpoints
        self._waits_for_cpu = self._contention.look(time.monotonic())
        self._target_cpu = self._present_cpu_seconds()
        target_cpu_seconds = self._target_cpu - parts.target_cpu_at_start
        samples_read = parts.branches.read(0.0)
        sampling = parts.sampling.look(time.monotonic(), target_cpu_seconds)
        for samples in samples_read.programs():
            if samples.exec_seconds:
                self._read_target()
            source = parts.sampled_lines
            lines, addresses = ([], AddressTally()) if source is None else source.take()
            memory = self._memory.since()
            yield Turn(
                now_seconds=time.monotonic(),
                target_cpu_seconds=target_cpu_seconds,
                own_cpu_seconds=parts.own_cpu.used_seconds,
                waits_for_cpu=self._waits_for_cpu,
                samples=samples,
                results=parts.tracer.results(),
                command=self._target.command,
                executable=self._target.executable,
                watched=[] if points is None else self._poll(points),
                refused_watches=self._take_refused_watches(),
                free_watches=0 if points is None else points.free,
                sampled_lines=lines,
                addresses=addresses,
                sampling=sampling,
                thread_seconds=self._thread_times.since(dict.fromkeys(samples.tid.tolist())),
                # Of children nobody knows it, but their code is in the windows.
                memory=None if self._config.follow_forks else memory,
                copied_bytes=self._copied.since(memory),
            )

    def _poll(self, points: Watchpoints) -> list[Watched]:
        """Take what watches told; those that go on are for threads that have begun since, too."""
        watched = points.poll()
        self._notes.tell(points.notes)
        if points.is_watching:
            points.follow(list_threads(self._target.pid))
        return watched

    def _take_refused_watches(self) -> list[tuple[WatchOrder, MemsampdError]]:
        refused, self._refused_watches = self._refused_watches, []
        return refused

    def _read_target(self) -> None:
        """The process runs another program."""
        self._memory.begin_anew()
        self._copied.begin_anew()
        with contextlib.suppress(OSError):
            before, now = self._target, read_identity(self._target.pid)
            self._target = replace(before, command=now.command, executable=now.executable)
            if now.executable != before.executable:
                name = now.executable or now.command
                logger.info("process %d now runs %s", self._target.pid, name)

    def _do(self, actions: Actions) -> None:
        self._snapshot = None
        for record in actions.records:
            for recorder in self._recorders:
                recorder.write(record)
        self._watch(actions)
        if actions.order is not None:
            self._parts.tracer.order(actions.order)
        if actions.ends_seeking:
            self._parts.tracer.end_seeking()
        self._tell(actions)

    def _tell(self, actions: Actions) -> None:
        """Tell the observers; one that cannot write it is told nothing any more."""
        for observer in self._observers:
            try:
                for window, assignment in actions.windows:
                    observer.window(window, assignment, self.snapshot)
                observer.turn(self.snapshot)
            except OSError as error:
                self._observers = tuple(each for each in self._observers if each is not observer)
                if isinstance(error, BrokenPipeError) and self._stop.reason is not None:
                    continue  # that its reader has gone is why we end, or Ctrl-C ended both
                name = error.filename or type(observer).__name__
                logger.error("nothing more is written to %s: %s", name, error.strerror)

    def _watch(self, actions: Actions) -> None:
        """Watch what is to be watched; who seeks code needs the debug registers."""
        points = self._parts.watchpoints
        if points is None:
            return
        if actions.order is not None and actions.order.seek_ips:
            points.suspend()
            return
        if actions.ends_watches:
            points.suspend()
        for order in actions.watches:
            try:
                points.start(order, list_threads(self._target.pid))
            except MemsampdError as error:
                self._refused_watches.append((order, error))

    def publish(self) -> None:
        """Show the present state to all exporters."""
        with self._lock:
            self._publisher.publish(self._target, self.snapshot)

    def refresh(self) -> None:
        """Show the present state to who is about to read it, unless that was a moment ago.

        May be called from any thread, between two turns.
        """
        with self._lock:
            if not self._is_over and self._publisher.is_due(is_asked=True):
                self.publish()

    def snapshot(self, *, only: Collection[int] | None = None) -> Snapshot:
        """The present state.

        Args:
            only: of its estimate, these phases are enough; None: all are wanted.
        """
        if self._snapshot is not None:
            return self._snapshot
        state = present_state(
            self._parts,
            self._target,
            is_alive=self._is_alive,
            is_let_go=self._is_let_go,
            only=only,
        )
        if only is None:
            self._snapshot = state
        return state
