"""Keeps what one session learns of its programs, and tells it what is known already."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import msgspec

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.learners import Known
from memsampd.daemon.store.database import ProfileStore
from memsampd.daemon.store.keys import ProgramKey, has_just_begun, program_key
from memsampd.daemon.store.profiles import (
    Profile,
    StoredBurst,
    chosen,
    code_set,
    pack_burst,
    unpack_burst,
)
from memsampd.estimate.events import (
    BurstRecord,
    EstimatorEvent,
    ExecRecord,
    MergeRecord,
    StoreDropRecord,
    WindowRecord,
)
from memsampd.exporters.history import KEPT_TIERS, History
from memsampd.exporters.past import Past, pack_past, unpack_past
from memsampd.exporters.snapshot import Snapshot
from memsampd.names import age_words
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.windows import code_bins

logger = logging.getLogger(__name__)

_SAVE_SECONDS = 240.0
_PATIENCE_SECONDS = 0.25  # with a program that has just begun: others have their turns
# A program of which so much of the time is in code of its own making is known again only as the
# same process: such code has no name that lasts.
_MOST_ANONYMOUS = 0.1


@dataclass(frozen=True, slots=True)
class _Save:
    """A profile that the store was given.

    Attributes:
        is_written: tells whether it was written, once that is known.
        ids: ids of its phases there, by those of this session.
        unix_seconds: when it was given.
    """

    is_written: Future[bool]
    ids: dict[int, int]
    unix_seconds: float


@dataclass(slots=True)
class _Program:
    """One of the programs that a process runs in turn.

    Attributes:
        key: which; None if it cannot be told.
        clusterer: knows its phases.
        bursts: what is kept of its bursts.
        is_changed: there are others than those that the store has, or was given.
        saves: of those that it was given; whether they were written is not known yet.
        is_unread: what is known of it has not been read.
        is_anonymous: it runs too much code without a lasting name; None while it runs.
        kept_ids: ids of its phases in the store, by those of this session.
        kept_unix_seconds: when that profile was written; 0: there is none.
    """

    key: ProgramKey | None
    clusterer: LeaderFollower
    bursts: tuple[StoredBurst, ...] = ()
    is_changed: bool = False
    saves: deque[_Save] = field(default_factory=deque)
    is_unread: bool = False
    is_anonymous: bool | None = None
    kept_ids: dict[int, int] = field(default_factory=dict)
    kept_unix_seconds: float = 0.0

    def settle(self) -> None:
        """See what was written of what the store was given: what was not is given to it again."""
        while self.saves and self.saves[0].is_written.done():
            save = self.saves.popleft()
            if save.is_written.result():
                self.kept_ids, self.kept_unix_seconds = save.ids, save.unix_seconds
            else:
                self.is_changed = True

    @property
    def named(self) -> tuple[dict[int, int], float]:
        """Ids of phases in the profile that the store will have, by those of this session; when."""
        if self.saves:
            return self.saves[-1].ids, self.saves[-1].unix_seconds
        return self.kept_ids, self.kept_unix_seconds


class ProfileKeeper:
    """Saves what is learned every few minutes, when the program changes, and at the end.

    It is a recorder, and an exporter: what the process does is kept, too, as snapshots tell it.

    Args:
        store: where.
        pid: the process.
        config: how it is observed.
        cpu: name of this machine's processor.
        anonymous_share: says which share of a process's samples are in code without a lasting name.
        tell: tells people what is known again, and what is not.
        unix_seconds: wall-clock time.
        now: monotonic time in seconds.
        branches: where branch samples come from.

    Attributes:
        past: what the process did before it was attached to, with the ids that phases have now;
            None if nothing was kept of it.
    """

    def __init__(
        self,
        store: ProfileStore,
        pid: int,
        config: SessionConfig,
        cpu: str,
        anonymous_share: Callable[[], float],
        tell: Callable[[str], None] = logger.debug,
        unix_seconds: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
        branches: str = "timer",
    ) -> None:
        self._store = store
        self._pid = pid
        self._config = config
        self._cpu = cpu
        self._anonymous_share = anonymous_share
        self._tell = tell
        self._unix_seconds = unix_seconds
        self._now = now
        self._branches = branches
        self._saved_seconds = now()
        self._started_unix_seconds = unix_seconds()
        self._programs: deque[_Program] = deque()
        self.past: Past | None = None
        self._history = History(KEPT_TIERS)
        self._ran_seconds = self._kept_ran_seconds = 0.0
        self._past_is_written: Future[bool] | None = None  # the last one; None: there is none

    # -- for the pipeline ----------------------------------------------------------------------

    def end_program(self) -> None:
        """The process runs another program from now on; its code has not been forgotten yet."""
        if self._programs:
            self._programs[-1].is_anonymous = self._runs_anonymous_code()

    def begin(self, clusterer: LeaderFollower, first_phase: int) -> Known:
        """Say what is known of the program that runs now, and keep what is learned of it.

        Args:
            clusterer: of its phases: it is given those that are known.
            first_phase: their ids begin with it.
        """
        # Of one that has run for long, a first page that is not there will not come.
        is_new = bool(self._programs) or has_just_begun(self._pid)
        patience_seconds = _PATIENCE_SECONDS if is_new else 0.0
        key = program_key(
            self._pid, self._config, self._branches, patience_seconds=patience_seconds
        )
        program = _Program(key, clusterer)
        self._programs.append(program)
        found = self._store.find(key, code_bins(self._config.bins)) if key is not None else None
        known = Known() if found is None else self._known(program, found, first_phase)
        if len(self._programs) == 1:
            self._restore(program)
        return known

    def _restore(self, program: _Program) -> None:
        """Go on with what was kept of what the process did."""
        found = self._store.find_past(program.key) if program.key is not None else None
        if found is None:
            return
        profile_unix_seconds, frame = found
        try:
            past = unpack_past(frame, self._now())
        except ValueError as error:
            logger.warning("what process %d did cannot be read: %s", self._pid, error)
            return
        is_same = profile_unix_seconds == program.kept_unix_seconds
        ids = {kept: id for id, kept in program.kept_ids.items()} if is_same else {}
        self.past = past.renamed(ids)
        self._history.restore(self.past)

    def _known(self, program: _Program, profile: Profile, first_phase: int) -> Known:
        """Give phases of a profile ids of this session."""
        with_bursts = {each.phase for each in profile.bursts}
        leaders = [each for each in profile.leaders if each.phase in with_bursts]
        ids = {each.phase: id for id, each in enumerate(leaders, first_phase)}
        program.clusterer.restore(
            [msgspec.structs.replace(each, phase=ids[each.phase]) for each in leaders]
        )
        bursts = [
            replace(each, phase=ids[each.phase]) for each in profile.bursts if each.phase in ids
        ]
        if bursts:
            age_seconds = self._unix_seconds() - bursts[-1].taken_unix_seconds
            self._tell(
                f"{len(ids)} {'phase is' if len(ids) == 1 else 'phases are'} known from the store,"
                f" by {len(bursts)} bursts, the latest {age_words(max(age_seconds, 0.0))} old"
            )
        program.is_unread = bool(bursts)
        program.kept_ids = {id: kept for kept, id in ids.items()}
        program.kept_unix_seconds = profile.saved_unix_seconds
        is_same_cpu, now_seconds = profile.cpu == self._cpu, self._unix_seconds()
        return Known(
            {ids[each.phase]: each.windows for each in leaders},
            lambda: self._read(program, bursts, now_seconds, is_same_cpu=is_same_cpu),
        )

    def _read(
        self,
        program: _Program,
        bursts: Sequence[StoredBurst],
        now_seconds: float,
        *,
        is_same_cpu: bool,
    ) -> tuple[BurstRecord, ...]:
        """Read stored bursts; those that cannot be used are left out."""
        records, usable = [], []
        for stored in bursts:
            try:
                record = unpack_burst(
                    stored.frame, code_bins(self._config.bins), is_same_cpu=is_same_cpu
                )
            except (ValueError, RecursionError) as error:
                logger.warning("a burst in the store cannot be used: %s", error)
                continue
            usable.append(replace(stored, code=code_set(record), is_old=True))
            age_seconds = max(now_seconds - stored.taken_unix_seconds, 0.0)
            records.append(
                msgspec.structs.replace(record, phase=stored.phase, time_seconds=-age_seconds)
            )
        program.is_unread = False
        program.bursts = (*usable, *program.bursts)
        return tuple(records)

    # -- an exporter ---------------------------------------------------------------------------

    def publish(self, snapshot: Snapshot) -> None:
        """Take note of what ran."""
        self._history.add(snapshot)
        self._ran_seconds = snapshot.estimate.cpu_seconds

    # -- a recorder ----------------------------------------------------------------------------

    def write(self, record: EstimatorEvent) -> None:
        """Take note of what has happened."""
        program = self._programs[0]
        match record:
            case BurstRecord():
                self._add(program, record)
            case MergeRecord():
                program.bursts = tuple(
                    replace(each, phase=record.into) if each.phase == record.gone else each
                    for each in program.bursts
                )
            case StoreDropRecord():
                self._tell(
                    f"phase {record.phase} does otherwise now than what was stored of it: that is"
                    " dropped"
                )
                self._drop(program, record.phase)
            case ExecRecord():
                self._save(program)
                self._programs.popleft()
            case WindowRecord():
                if self._now() - self._saved_seconds >= _SAVE_SECONDS:
                    self._save(program)
                    self._save_past()

    def close(self) -> None:
        """Save what is not yet saved."""
        for program in self._programs:
            self._save(program)
        self._save_past()

    def _add(self, program: _Program, record: BurstRecord) -> None:
        if program.key is None or record.is_stored:
            return
        if not (record.accesses > 0 or record.is_memoryless):
            return
        taken = self._started_unix_seconds + record.time_seconds
        burst = StoredBurst(
            record.phase, taken, record.accesses, pack_burst(record), code_set(record)
        )
        program.bursts = chosen((*program.bursts, burst))
        program.is_changed = True

    def _drop(self, program: _Program, phase: int) -> None:
        """Forget what was kept of a phase before the attach."""
        program.bursts = tuple(
            each for each in program.bursts if each.phase != phase or not each.is_old
        )
        program.is_changed = True

    def _runs_anonymous_code(self) -> bool:
        return self._anonymous_share() > _MOST_ANONYMOUS

    def _save(self, program: _Program) -> None:
        self._saved_seconds = self._now()
        program.settle()
        if program.key is None or program.is_unread or not program.is_changed:
            return
        program.is_changed = False
        with_bursts = {each.phase for each in program.bursts}
        leaders = [
            each
            for each in program.clusterer.leaders(code_bins(self._config.bins))
            if each.phase in with_bursts
        ]
        ids = {each.phase for each in leaders}
        bursts = tuple(each for each in program.bursts if each.phase in ids)
        is_anonymous = program.is_anonymous
        if is_anonymous is None:
            is_anonymous = self._runs_anonymous_code()
        profile = Profile(
            tuple(leaders), bursts, program.key.process if is_anonymous else "", self._cpu
        )
        now_seconds = self._unix_seconds()
        is_written = self._store.save(program.key, profile, now_seconds)
        program.saves.append(_Save(is_written, {id: id for id in ids}, now_seconds))

    def _save_past(self) -> None:
        """Keep what the process did, if it did anything."""
        if not self._programs:  # not even the first one was looked up
            return
        program, last = self._programs[-1], self._past_is_written
        if last is not None and last.done() and not last.result():
            self._kept_ran_seconds = 0.0
        past = self._history.past() if self._ran_seconds > self._kept_ran_seconds else None
        if past is None or program.key is None:
            return
        self._kept_ran_seconds = self._ran_seconds
        ids, profile_seconds = program.named
        frame = pack_past(past.renamed(ids))
        self._past_is_written = self._store.save_past(
            program.key, profile_seconds, frame, self._unix_seconds()
        )
