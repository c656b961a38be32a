"""What a session costs: the target by bursts, and the machine by memsampd's own processes."""

from __future__ import annotations

import math
from collections.abc import Callable

from memsampd.daemon.allowance import Allowance
from memsampd.daemon.sampling import Sampling
from memsampd.exporters.snapshot import Overhead
from memsampd.phases.schedule.need import USUAL_CPU_SECONDS
from memsampd.sampler.records import BurstCost

_ASLEEP_SECONDS = 1.0  # without any CPU time
_START_SECONDS = 10.0  # for so long there is nothing but what is granted
# Where no CPU is idle, and nobody may be disturbed, the second is not for bursts: these have this
# part of what comes in, whatever memsampd's start and its turns take.
_WORK_PART = 0.5
USUAL_PART = 0.9
"""Of what memsampd's processes may use: the rest is kept for phases that have no curve yet."""
# From the start on until the share is more than what was granted, turns, which never wait, have
# used up what was kept: first bursts may go so far beyond it. Without that a phase of the demo that
# began after ten seconds had no curve.
_LATER_PART = 1.1
# The more phases a program has had, the more are to be expected: beyond two, each has so much kept
# for another one, up to a limit. In live runs of a picture filter with ten phases the second was
# spent before the last two, 40 % of its time.
_EACH_PHASE_PART, _MOST_PHASES_PART = 0.02, 0.15
# What turns took tells something of later ones from here on: at first much is loaded and decoded.
# (Programs of 3 to 4 s had a fifth of their bursts less where it counted from the start.)
_TURNS_FROM_SECONDS = 5.0
_LEAST_TURN_WEIGHT = 1 / 16  # of the last turn: what a burst took is told before that it was one
# From here on until the start is over bursts come nearly evenly in each doubling of the time that
# has passed, for nobody knows how long a program will run; half as many again as evenly, for most
# end before that. In simulated runs of 2 to 15 s this was best, or nearly.
_SOONER = 1.5
_EARLIEST_SECONDS = 0.5
_LATELY_SECONDS = 2.0
# A program without any curve may have a burst so often though no own CPU time is left: where it
# uses little, turns use all that it earns, and it would never have one.
_FIRST_SPACING_SECONDS = 10.0
# So may a phase that has lasted without one, and once more when that is earned (planner.py).
_LASTING_SPACING_SECONDS = 2.0
_LONG_BURSTS_PART = 0.8  # of what is granted: a long burst that would use more waits until later
# Watches tell of large caches only, and take 15 % of what is granted: at first bursts come before.
# Later these use what comes in, and nothing would be left if watches waited for it.
SPARE_PART = 0.35
"""Of what is granted: while less is used, lines are watched."""


class Ledger:
    """Adds up costs and says whether memsampd's own processes may do more work.

    What these use beyond their share is not taken back: bursts wait until the target has used
    enough, and for how long is counted. Sampling and results never wait.

    Args:
        budget_share: share of the target's CPU time that bursts may cost it.
        own_cpu_share: CPU seconds that memsampd may use a CPU second of the target.
        now_seconds: monotonic time of the attach.
        permit: says whether others, who share the machine's budget, leave room for a burst.
        usual_part: of the share is for phases that have a curve already.
        spare_part: while less than this part of what is granted is used, lines are watched.
        is_sparing: bursts have nothing in advance while memsampd has to wait for a CPU.
        cpus: that memsampd may run on.
    """

    def __init__(
        self,
        budget_share: float,
        own_cpu_share: float,
        now_seconds: float,
        permit: Callable[[], bool] = lambda: True,
        usual_part: float = USUAL_PART,
        spare_part: float = SPARE_PART,
        *,
        is_sparing: bool = False,
        cpus: float = math.inf,
    ) -> None:
        self.change(usual_part, spare_part, is_sparing=is_sparing)
        self._is_contended = False
        self._permit = permit
        self._budget_share = budget_share
        self._own_cpu_share = own_cpu_share
        self._allowance = Allowance(own_cpu_share, budget_share, cpus)
        self._started_seconds = self._now_seconds = self._ran_seconds = now_seconds
        self._target_cpu_seconds = 0.0
        self._busy_share = 1.0
        self._own_cpu_seconds = 0.0
        self._idle_cpu_seconds = 0.0  # of these, while the target slept: no debt of bursts
        self._sampling = Sampling()
        self._bursts = BurstCost()
        self._taken = 0  # bursts
        self._start_cpu_seconds: float | None = None  # own, of the start
        self._waited_seconds = 0.0
        self._waiting_since: float | None = None
        self._phases_part = 0.0
        self._lent_seconds = now_seconds  # when a burst last went on credit
        self._turns, self._turn_seconds = 0, 0.0  # what one took lately
        self._before_turn_seconds = 0.0  # own CPU time without bursts, at the end of the last one
        self._turns_before = 0.0, 0.0  # what they took before that tells anything, own and target's

    def change(
        self,
        usual_part: float = USUAL_PART,
        spare_part: float = SPARE_PART,
        *,
        is_sparing: bool = False,
    ) -> None:
        """Share out otherwise from now on what may be used; see the class."""
        self._usual_part = usual_part
        self._spare_part = spare_part
        self._is_sparing = is_sparing

    def tell_time(
        self,
        now_seconds: float,
        target_cpu_seconds: float,
        own_cpu_seconds: float,
        waits_for_cpu: bool = False,
    ) -> float:
        """Note what has been used so far.

        Args:
            now_seconds: monotonic time.
            target_cpu_seconds: CPU time of the target since the attach.
            own_cpu_seconds: CPU time of memsampd's threads for this target, without the replica.
            waits_for_cpu: whether memsampd's own threads have to wait for a CPU.

        Returns:
            CPU time that the target used since this was told last.
        """
        elapsed = max(target_cpu_seconds - self._target_cpu_seconds, 0.0)
        is_asleep = self.idle_seconds > _ASLEEP_SECONDS  # it may wake up at the end of that
        if elapsed > 0:
            self._ran_seconds = now_seconds
        passed = now_seconds - self._now_seconds
        if passed > 0:
            part = min(passed / _LATELY_SECONDS, 1.0)
            self._busy_share += part * (elapsed / passed - self._busy_share)
        self._now_seconds = now_seconds
        self._target_cpu_seconds += elapsed
        is_asleep = is_asleep or self.idle_seconds > _ASLEEP_SECONDS
        if is_asleep:
            asleep_part = 1 - min(elapsed / passed, 1.0) if passed > 0 else 1.0
            own_seconds = max(own_cpu_seconds - self._own_cpu_seconds, 0.0)
            self._idle_cpu_seconds += asleep_part * own_seconds
        self._own_cpu_seconds = own_cpu_seconds
        self._is_contended = self._is_sparing and waits_for_cpu
        self._allowance.tell(
            max(passed, 0.0),
            elapsed,
            self._used_seconds,
            self._without_bursts_seconds,
            self._busy_share if waits_for_cpu else 0.0,
        )
        if self._start_cpu_seconds is None:
            self._start_cpu_seconds = own_cpu_seconds
        elif not is_asleep:
            self._add_turn(self._without_bursts_seconds - self._before_turn_seconds)
        # A burst that is told from now on is taken off the turn that its CPU time was added to.
        self._before_turn_seconds = self._without_bursts_seconds
        if self._elapsed_seconds < _TURNS_FROM_SECONDS:
            self._turns_before = self._without_bursts_seconds, self._target_cpu_seconds
        return elapsed

    def _add_turn(self, seconds: float) -> None:
        self._turns += 1
        weight = max(_LEAST_TURN_WEIGHT, 1 / self._turns)
        self._turn_seconds += weight * (seconds - self._turn_seconds)

    def tell_phases(self, phases: int) -> None:
        """Note how many phases the program has had so far."""
        self._phases_part = min(_EACH_PHASE_PART * max(phases - 2, 0), _MOST_PHASES_PART)

    @property
    def _elapsed_seconds(self) -> float:
        """Wall time since the attach."""
        return self._now_seconds - self._started_seconds

    @property
    def is_start(self) -> bool:
        """Whether the attach was so lately that there is only what was granted."""
        return self._elapsed_seconds < _START_SECONDS

    @property
    def _part_of_usual(self) -> float:
        """Of what may be used, the part that is for phases which have a curve already."""
        return self._usual_part - self._phases_part

    @property
    def _part_of_first(self) -> float:
        """The same for first bursts of phases."""
        return 1.0 if self.is_start or self._earns else _LATER_PART

    @property
    def _earns(self) -> bool:
        """Whether the target has used so much that what was granted is earned."""
        return self._allowance.earned_seconds >= self._allowance.granted_seconds

    def tell_sampling(self, sampling: Sampling) -> None:
        """Note what branch samples have cost so far."""
        self._sampling = sampling

    def add_burst(self, cost: BurstCost, *, is_taken: bool = False) -> None:
        """Pay for a burst, taken or tried in vain."""
        self._bursts += cost
        self._taken += is_taken

    def bursts_ahead(self) -> tuple[float, float]:
        """Say how many bursts own CPU time allows, and for how long they have to last at this pace.

        Where each doubling of the time ``t`` is to have as many bursts until some end, what is left
        must last for ``t * log(end / t)`` at the present pace. After the start what comes in is
        spent.

        Returns:
            Bursts, and CPU seconds that the target uses meanwhile.
        """
        ahead = elapsed = self._elapsed_seconds
        if self.is_start:
            since = max(elapsed, _EARLIEST_SECONDS)
            ahead = since * math.log(_START_SECONDS / since) / _SOONER
        busy = self._target_cpu_seconds / elapsed if elapsed > 0 else 1.0
        later_seconds = busy * ahead
        allowed = self._allowed_after(
            elapsed + ahead, self._target_cpu_seconds + later_seconds, self._part_of_usual
        )
        left = max(allowed - self._used_seconds, 0.0)
        since_start = self._used_seconds - (self._start_cpu_seconds or 0.0)
        cost = (since_start + USUAL_CPU_SECONDS) / (self._taken + 1)
        return left / cost, later_seconds

    @property
    def turn_seconds(self) -> float:
        """Own CPU time that a turn took lately."""
        return max(self._turn_seconds, 0.0)

    @property
    def own_cpu_rate(self) -> float:
        """CPU seconds that memsampd may use a second while the target goes on as lately."""
        return self._own_cpu_share * max(self._busy_share, 0.01)

    @property
    def busy_share(self) -> float:
        """CPU seconds that the target used a second lately; 1 before anything is known."""
        return self._busy_share

    @property
    def idle_seconds(self) -> float:
        """For how long the target has used no CPU time."""
        return self._now_seconds - self._ran_seconds

    @property
    def burst_cpu_seconds(self) -> float:
        """CPU time of memsampd's processes that bursts took: tracing, counting, the replica."""
        return self._bursts.own_cpu_seconds

    @property
    def _awake_seconds(self) -> float:
        """Own CPU time, but for what was used while the target slept, and so earned none."""
        return self._own_cpu_seconds - self._idle_cpu_seconds

    @property
    def _used_seconds(self) -> float:
        return self._awake_seconds + self._bursts.replica_cpu_seconds

    @property
    def _without_bursts_seconds(self) -> float:
        """Own CPU time of the start and the turns."""
        return self._awake_seconds - self._bursts.tracer_cpu_seconds

    def has_room(
        self, *, is_urgent: bool = False, is_first: bool = False, is_unseen: bool = False
    ) -> bool:
        """Whether own CPU time is left for a burst.

        Args:
            is_urgent: it is the first of its phase.
            is_first: the program has no curve at all.
            is_unseen: it is of code that no burst has seen.
        """
        is_left = self._leaves_time(is_first=is_urgent or is_first, is_unseen=is_unseen)
        return is_left and self._permit()

    def _leaves_time(self, *, is_first: bool, is_unseen: bool = False) -> bool:
        """The same, whatever others use."""
        if is_first:
            return self._used_seconds < self._allowed_seconds(self._part_of_first)
        part = 1.0 if is_unseen else self._part_of_usual
        return self._used_seconds + self._turns_ahead_seconds < self._allowed_seconds(part)

    @property
    def _turns_ahead_seconds(self) -> float:
        """What turns will take in as much time as has passed, until what was granted is earned."""
        turns = self._without_bursts_seconds - self._turns_before[0]
        ran = self._target_cpu_seconds - self._turns_before[1]
        if self._earns or not ran > 0:
            return 0.0
        missing = self._allowance.granted_seconds - self._allowance.earned_seconds
        ahead_seconds = min(self._target_cpu_seconds, missing / self._own_cpu_share)
        return max(turns, 0.0) / ran * ahead_seconds

    def allows_burst(
        self, *, is_urgent: bool = False, is_first: bool = False, is_lasting: bool = False
    ) -> bool:
        """Whether a burst that is due may be taken now; from a no to the next yes bursts wait.

        Args:
            is_urgent: it is the first of its phase.
            is_first: the program has no curve at all.
            is_lasting: it is urgent, and its phase has lasted.
        """
        if not self._permit():
            return False
        has_room = self._leaves_time(is_first=is_urgent or is_first)
        spacing_seconds = _FIRST_SPACING_SECONDS if is_first else _LASTING_SPACING_SECONDS
        if not has_room and not ((is_first or is_lasting) and self._lends(spacing_seconds)):
            if self._waiting_since is None:
                self._waiting_since = self._now_seconds
            return False
        self._waited_seconds, self._waiting_since = self._waited(), None
        return True

    def _lends(self, spacing_seconds: float) -> bool:
        """Whether a burst may go on credit; not again soon."""
        if self._is_contended or self._now_seconds - self._lent_seconds < spacing_seconds:
            return False
        self._lent_seconds = self._now_seconds
        return True

    def _allowed_seconds(self, part: float) -> float:
        return self._allowed_after(self._elapsed_seconds, self._target_cpu_seconds, part)

    def _allowed_after(self, wall_seconds: float, target_cpu_seconds: float, part: float) -> float:
        """What may have been used by then if a part of it is for bursts, or for watches."""
        later_seconds = target_cpu_seconds - self._target_cpu_seconds
        earned = part * self._allowance.earned_after(later_seconds)
        granted = part * self._allowance.granted_seconds
        if wall_seconds >= _START_SECONDS:
            granted = max(granted, earned)
        if not self._is_contended:
            return granted
        without_bursts = self._without_bursts_seconds
        return min(max(earned, without_bursts + _WORK_PART * earned), granted)

    def has_spare(self, *, is_open: bool = False) -> bool:
        """Whether so much own CPU time is left that watches take none from bursts, or little.

        Once the target has earned what was granted, all that is allowed is for both.

        Args:
            is_open: bursts leave much open that watches may tell: so it is at once.
        """
        part = 1.0 if is_open or self._earns else self._spare_part
        return self._used_seconds < self._allowed_seconds(part)

    def affords(self, own_cpu_seconds: float) -> bool:
        """Whether one burst may take so much own CPU time: in what was granted others need room.

        Once that is earned, later ones wait for as long as it takes.
        """
        is_small = self._used_seconds + own_cpu_seconds < self._allowed_seconds(_LONG_BURSTS_PART)
        return is_small or self._earns

    @property
    def is_waiting(self) -> bool:
        """Whether a burst was wanted last that memsampd's own CPU time did not allow."""
        return self._waiting_since is not None

    def _waited(self) -> float:
        if self._waiting_since is None:
            return self._waited_seconds
        return self._waited_seconds + self._now_seconds - self._waiting_since

    def overhead(self) -> Overhead:
        """Everything, for people."""
        target_cpu, cost = self._target_cpu_seconds, self._bursts
        return Overhead(
            target_cpu_seconds=target_cpu,
            stop_seconds=cost.stop_seconds,
            longest_stop_seconds=cost.longest_stop_seconds,
            hit_seconds=cost.hit_seconds,
            sampling_seconds=self._sampling.seconds,
            budget_share=self._budget_share,
            taken_cpu_seconds=self._allowance.taken_seconds,
            spent_share=cost.target_seconds / target_cpu if target_cpu > 0 else 0.0,
            own_cpu_seconds=self._own_cpu_seconds + cost.replica_cpu_seconds,
            replica_cpu_seconds=cost.replica_cpu_seconds,
            own_cpu_share=self._own_cpu_share,
            own_cpu_granted_seconds=self._allowance.granted_seconds,
            own_cpu_waited_seconds=self._waited(),
            waits_for_own_cpu=self.is_waiting,
            sampled_share=self._sampling.share,
            sampling_why=self._sampling.why,
        )
