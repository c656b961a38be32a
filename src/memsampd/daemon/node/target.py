"""One process that a node observes, or tries to: its turns, and what becomes of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec

from memsampd.daemon.config import AccessChoice, SessionConfig
from memsampd.daemon.node.attachment import Attachment, Common
from memsampd.daemon.node.budget import Candidate, Costs
from memsampd.daemon.node.cpu_use import IDLE_LOOK_SECONDS, CpuUse
from memsampd.daemon.node.discovery import ProcessKey
from memsampd.daemon.node.peers import Peer
from memsampd.daemon.session import Session
from memsampd.errors import CapabilityError, MemsampdError, TargetError
from memsampd.exporters.snapshot import NodeTarget, Snapshot, TargetState
from memsampd.sampler.process.cputime import process_cpu_ns

logger = logging.getLogger(__name__)

# How often a target has its turn while it runs without bursts, and its session while it does not.
_SAMPLED_TURN_SECONDS = 1.0
_IDLE_STEP_SECONDS = 30.0
# So full a buffer of samples may become until a target's next turn; one that uses little CPU time
# may use more by then.
_RING_PART, _LEAST_BUSY_SHARE = 0.75, 0.5
# Turns are on a grid: targets have them together, and the daemon wakes up more rarely.
_GRID_SECONDS = 0.05
# For so long after it ran last a target may have bursts: they wait until it runs again.
_AWAITED_SECONDS = 60.0
_PUBLISH_NEW_SECONDS = 1.0  # at most, until there is a curve
_PUBLISH_IDLE_SECONDS = 60.0
_FIRST_RETRY_SECONDS = 2.0
_LONGEST_RETRY_SECONDS = 300.0
_GOOD_SECONDS = 60.0  # without a failure, and those before are forgotten
_MOST_FAILURES = 16  # that are counted: no pause is longer after more


@dataclass(frozen=True, slots=True)
class Wanted:
    """A process that is to be observed.

    Attributes:
        key: the process.
        rule: that chose it; "user" if somebody asked for it.
        config: how to observe it.
        asked_by: who asked for it; None: a rule did.
        accesses: where somebody wants its accesses to come from; None: as the configuration says.
    """

    key: ProcessKey
    rule: str
    config: SessionConfig
    asked_by: Peer | None = None
    accesses: AccessChoice | None = None


@contextmanager
def logged_only(what: str) -> Iterator[None]:
    """Keep to one target, or one exporter, what goes wrong there: the others go on."""
    try:
        yield
    except Exception:
        logger.exception("%s failed", what)


class Target:
    """Observes one process in turns that its owner gives it; tries again where that fails.

    Args:
        wanted: the process.
        common: what it shares with others.
        now_seconds: monotonic time.

    Attributes:
        wanted: the process, and how it is to be observed.
        next_turn_seconds: when it is to have its next turn.
        has_bursts: it is its turn to have some.
        burst_share: part of the time for which it is.
        children: processes that it has forked since somebody looked.
        snapshot: its state as told last; None: none was.
    """

    def __init__(self, wanted: Wanted, common: Common, now_seconds: float) -> None:
        self.wanted = wanted
        self.next_turn_seconds = now_seconds
        self.has_bursts = False
        self.burst_share = 0.0
        self.children: list[int] = []
        self.snapshot: Snapshot | None = None
        self._common = common
        self._attachment = Attachment(
            wanted.key, common, self._may_have_bursts, self._is_permitted, self._tell
        )
        self._cpu_use = CpuUse(now_seconds)
        self._error: MemsampdError | None = None
        self._failures = 0
        self._last_failure = ""
        self._stepped_seconds = self._attached_seconds = now_seconds
        self._published_seconds = -_PUBLISH_IDLE_SECONDS
        self._is_changed = True

    # -- life ----------------------------------------------------------------------------------

    def turn(self, now_seconds: float, pace: float = 1.0) -> bool:
        """Do what is due.

        Args:
            now_seconds: monotonic time.
            pace: by how much turns are to be rarer than usual.

        Returns:
            Whether the process is still there.
        """
        try:
            return self._turn(now_seconds, pace)
        except CapabilityError as error:
            self._fail(error, now_seconds)
        except Exception as error:  # of this target: the others go on
            cause = f"observing it failed: {error!a}"
            self._fail(TargetError(cause, "please report it with the log"), now_seconds, error)
        return True

    def _turn(self, now_seconds: float, pace: float) -> bool:
        session = self._attachment.session
        if session is None:
            return self._attach(now_seconds)
        if session.ending() is not None:
            return False
        if not self._is_permitted():
            self._tell("it is no longer the user's who asked for it")
            self._release()  # nothing more is read of it, nor told
            return False
        try:
            self._take_turn(session, now_seconds, pace)
        except TargetError as error:
            if not self._attachment.is_there():
                return False
            self._fail(error, now_seconds)
        if self._failures and now_seconds - self._attached_seconds >= _GOOD_SECONDS:
            self._failures, self._last_failure = 0, ""
        return True

    def _attach(self, now_seconds: float) -> bool:
        """Try to; whether the process is there, and may be observed."""
        try:
            session = self._attachment.open(self.wanted.config)
        except TargetError as error:
            if not (self._attachment.is_there() and self._is_permitted()):
                return False
            self._fail(error, now_seconds)
        except (MemsampdError, OSError) as error:
            self._fail(_as_memsampd_error(error), now_seconds)
        else:
            self._error = None
            self._stepped_seconds = self._attached_seconds = now_seconds
            self._cpu_use.begin(session.parts.target_cpu_at_start, now_seconds)
            self.next_turn_seconds = now_seconds
            self._tell("it is observed now")
        return True

    def _is_permitted(self) -> bool:
        """Whether who asked for the process may have it now: it may have become another program."""
        asked_by, key = self.wanted.asked_by, self.wanted.key
        return asked_by is None or asked_by.may_have(key.pid, key.start_ticks)

    def _may_have_bursts(self) -> bool:
        return self.has_bursts and self._common.allows_bursts()

    def change_accesses(self, choice: AccessChoice) -> None:
        """Take accesses from elsewhere from now on; what was learned of the process stays.

        Raises:
            MemsampdError: they cannot be had from there; all goes on as before.
        """
        config = msgspec.structs.replace(self.wanted.config, accesses=choice)
        accesses = self._attachment.change_accesses(config)
        if accesses is not None:
            self._is_changed = True
            info, what = self._attachment.info, f"{accesses.source} from now on: {accesses.why}"
            logger.info("process %d (%s): accesses by %s", info.pid, info.command, what)
        self.wanted = replace(self.wanted, config=config)

    def _fail(
        self, error: MemsampdError, now_seconds: float, mistake: Exception | None = None
    ) -> None:
        """Let go, and try again later.

        Args:
            error: why.
            now_seconds: monotonic time.
            mistake: of ours, that is to be logged with where it was made.
        """
        if str(error) != self._last_failure:
            pid = self.wanted.key.pid
            logger.warning("process %d is not observed: %s", pid, error, exc_info=mistake)
        self._release()
        self._error, self._last_failure = error, str(error)
        pause = min(_FIRST_RETRY_SECONDS * 2**self._failures, _LONGEST_RETRY_SECONDS)
        self._failures = min(self._failures + 1, _MOST_FAILURES)
        self.next_turn_seconds = now_seconds + pause

    def close(self, *, ended: bool) -> None:
        """Leave the process as it was, and have exporters forget it.

        Args:
            ended: the process is gone.
        """
        session = self._attachment.session
        if session is not None:
            why = "it has ended" if ended else "it is let go"
            self._tell(why)
            session.stop(why)
            with logged_only(f"the end of process {self.key.pid}"):
                session.finish(observed_no_more=True)
                self.snapshot = None  # exporters know
        self._release()

    def _tell(self, what: str) -> None:
        """Log it; what rules choose may come and go many times a second."""
        level = logging.DEBUG if self.wanted.asked_by is None else logging.INFO
        logger.log(level, "process %d (%s): %s", self.key.pid, self.command, what)

    def _release(self) -> None:
        """Let go of the process, and have exporters forget it."""
        shown, self.snapshot = self.snapshot, None
        with logged_only(f"letting process {self.key.pid} go"):
            self._attachment.close()
        if shown is not None:
            last = msgspec.structs.replace(
                shown, alive=False, is_let_go=self._attachment.is_there()
            )
            for exporter in self._common.exporters:
                with logged_only(f"the end of process {self.key.pid} in an exporter"):
                    exporter.publish(last)

    # -- turns ---------------------------------------------------------------------------------

    def _take_turn(self, session: Session, now_seconds: float, pace: float) -> None:
        runs = self._cpu_use.look(process_cpu_ns(self.key.pid) * 1e-9, now_seconds)
        is_wanted = runs or self.has_bursts or self._attachment.is_awake
        if is_wanted or now_seconds - self._stepped_seconds >= _IDLE_STEP_SECONDS:
            self.children += self._attachment.step(has_bursts=self.has_bursts)
            self._stepped_seconds, self._is_changed = now_seconds, True
        self._publish(session, now_seconds, pace)
        due = now_seconds + self._pause_seconds(session, pace)
        self.next_turn_seconds = (due // _GRID_SECONDS + 1) * _GRID_SECONDS

    def _pause_seconds(self, session: Session, pace: float) -> float:
        if self._cpu_use.is_idle:  # when it wakes up, all that it does is to be in the ring
            return min(IDLE_LOOK_SECONDS, _RING_PART * session.ring_seconds)
        if self._may_have_bursts():
            pause = session.pause_seconds()
            if session.hurries:
                return pause
            # Half a window is soon enough for who uses little CPU time.
            window = self.wanted.config.window_seconds / max(self._cpu_use.share, 0.001)
            pause = max(pause, min(window / 2, _SAMPLED_TURN_SECONDS))
        else:
            pause = _SAMPLED_TURN_SECONDS
        busy_share = min(max(self._cpu_use.share, _LEAST_BUSY_SHARE), 1.0)
        return min(pause * pace, _RING_PART * session.ring_seconds / busy_share)

    def _publish(self, session: Session, now_seconds: float, pace: float) -> None:
        since = now_seconds - self._published_seconds
        is_new = self.snapshot is None or not self.snapshot.estimate.curves
        pause = self._common.publish_seconds()
        if is_new:
            pause = min(pause, _PUBLISH_NEW_SECONDS)
        is_due = since >= pause * pace and self._is_changed
        if is_due or since >= _PUBLISH_IDLE_SECONDS:
            session.publish()
            self.snapshot = session.snapshot()
            self._published_seconds, self._is_changed = now_seconds, False

    # -- for the node --------------------------------------------------------------------------

    @property
    def key(self) -> ProcessKey:
        """The process."""
        return self.wanted.key

    @property
    def command(self) -> str:
        """Its short name, as far as it is known."""
        return self._attachment.info.command

    def candidate(self, now_seconds: float) -> Candidate | None:
        """What it has to say for having bursts; None if it cannot have any now.

        Args:
            now_seconds: monotonic time.
        """
        session = self._attachment.session
        if session is None or self.wanted.config.schedule == "none":
            return None
        if now_seconds - self._cpu_use.ran_seconds >= _AWAITED_SECONDS:
            return None
        return Candidate(
            cpu_share=self._cpu_use.usual_share,
            unknown_share=self._unknown_share(),
            bursts=sum(session.parts.pipeline.counts.ends.values()),
            cost_seconds=self.costs().of_bursts_seconds,
            owner=self._attachment.owner,
        )

    def _unknown_share(self) -> float:
        if self.snapshot is None or not self.snapshot.estimate.windows:
            return 1.0
        estimate = self.snapshot.estimate
        return estimate.unknown_cpu_seconds / estimate.cpu_seconds

    def costs(self) -> Costs:
        """What it has cost."""
        return self._attachment.costs()

    def status(self) -> NodeTarget:
        """How it fares."""
        state, reason, remedy = self._state()
        costs = self.costs()
        return NodeTarget(
            target=self._attachment.info,
            state=state,
            rule=self.wanted.rule,
            reason=reason,
            remedy=remedy,
            own_cpu_seconds=costs.own_cpu_seconds,
            stop_seconds=costs.stop_seconds,
            burst_share=self.burst_share,
        )

    def _state(self) -> tuple[TargetState, str, str]:
        """State, reason and remedy."""
        if self._error is not None:
            return "failed", self._error.cause, self._error.remedy
        session = self._attachment.session
        if session is None:
            return "waiting", "it is attached to at its first turn", ""
        if self._cpu_use.is_idle:
            waits = "; a burst is taken when it runs" if self.has_bursts else ""
            return "idle", f"it uses no CPU time{waits}", ""
        if self.has_bursts:
            how = "nothing is stopped: accesses by watchpoints" if session.stops_nothing else ""
            return "profiled", session.parts.pipeline.trouble or how, ""
        if self.wanted.config.schedule == "none":
            return "sampled", 'its schedule is "none"', ""
        return "sampled", "other targets have their turn", "raise profiled_targets in [budget]"


def _as_memsampd_error(error: MemsampdError | OSError) -> MemsampdError:
    return error if isinstance(error, MemsampdError) else TargetError(str(error))
