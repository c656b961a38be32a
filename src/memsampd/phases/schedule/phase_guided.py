"""Few windows of each phase, soon and then ever more rarely."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import BudgetedSchedule
from memsampd.phases.schedule.lengths import BurstLengths
from memsampd.phases.schedule.need import USUAL_CPU_SECONDS, PhaseNeed, needs


class _Phase(msgspec.Struct):
    """What the schedule knows of one phase."""

    lengths: BurstLengths
    weight: float = 0.0  # windows, the old ones counting less
    weighed_at: int = 0  # window at which ``weight`` was true
    age: int = 0  # its own windows since it was new or has drifted; more if it was known before
    windows_left: float = 0.0  # of its own, until it is due; each counts as much as it is needed
    drifted: bool = False
    hastened: bool = False
    seen: PhaseNeed = msgspec.field(default_factory=PhaseNeed)


_LEAST_PART = 0.25
# Phases with a burst leave so much of the budget to phases that may come: their first bursts.
_NEW_PHASES = 3
# Of phases whose bands are as narrow as this without them, long bursts tell nothing new.
_NARROW_BAND = 0.01
# A burst that came so many windows late, or less, makes the next one come sooner by as many. It is
# in the middle of its window, on the average, and that one has been counted.
_MOST_LATE = 4.0
_IN_WINDOW = 0.5
# Mean gaps, in windows of the phase, until one that was known before the attach is checked by a
# burst, and from then on at least.
_CHECK_GAP = 8.0
_KNOWN_GAP = 128.0
_AGING = math.log(2) / 600  # after so many windows one counts half in the weight of its phase


class PhaseGuided(BudgetedSchedule):
    """Profiles new phases at once, known ones after gaps that grow with their age.

    Gaps are counted in windows of the phase itself. Their mean is the windows that the phase has
    had, divided by ``resolution``, between ``first_gap`` and ``max_gap``; each is drawn evenly from
    half to one and a half times that, so that bursts neither fall into step with the program nor
    leave a long stretch of it unseen, as independent moments would. They are counted from the
    moment at which the last burst was due, whenever it came and was analysed. So a phase is seen at
    about as many moments whether it lasts seconds or hours: what it does now may differ from what
    it did, though its code is the same. A phase whose curve drifted begins anew. Lengths are chosen
    for each phase by itself (:class:`~memsampd.phases.schedule.lengths.BurstLengths`).

    Gaps are longer where fewer bursts can be paid for (:meth:`pace`), and each window of a phase
    counts as much as the whole run's curve needs bursts of it
    (:func:`~memsampd.phases.schedule.need.needs`): those whose bursts agree wait for longer.

    When several phases are due and the budget is short, the most urgent goes first: urgency is the
    weight of a phase (its share of recent windows) times the uncertainty of its curve,
    1/sqrt(bursts), without end for a phase that has none. A phase that is due takes a burst only
    if the budget holds enough for the shortest burst of the most urgent one besides. Savings of two
    bursts are allowed for this: a phase that never comes back delays others but cannot stop
    them. Phases that have bursts also leave enough for the first bursts of three phases to come, so
    that a phase which lasts a second has a curve.

    A phase that is known from before the attach is checked by one burst soon, and goes on as one
    that has lasted for long.

    Args:
        first_gap: mean gap at least, windows.
        max_gap: mean gap at most, windows.
        resolution: bursts that the age of a phase is divided into.
        rng, budget: see the base.

    References:
        Sembrant, Black-Schaffer, Hagersten: Phase guided profiling for fast cache modeling, CGO
        2012, on profiling phases instead of windows. Growing gaps and the budget are ours.
    """

    name = "phase-guided"

    def __init__(
        self,
        rng: random.Random,
        *,
        first_gap: float = 1.0,
        max_gap: float = 256.0,
        resolution: float = 32.0,
        **budget: Any,
    ) -> None:
        if not 0 < first_gap <= max_gap or resolution <= 0:
            raise ValueError("gaps ascend, and resolution is above 0")
        super().__init__(rng, **budget)
        self._first_gap = first_gap
        self._max_gap = max_gap
        self._resolution = resolution
        self._phases: dict[int, _Phase] = {}
        self._needs: dict[int, float] = {}
        self._bands: Mapping[int, float] = {}
        self._least_gap = 0.0
        self._now = 0

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        self._now = window_index
        if predicted_phase is None:
            return Decision(False, "no-prediction")
        phase = self._pass_window(predicted_phase)
        if phase.windows_left > 0:
            return Decision(False, "not-due")
        reason = "drift" if phase.drifted else "due" if phase.seen.bursts else "new-phase"
        reason = "other-pace" if phase.hastened else reason
        is_open = self._bands.get(predicted_phase, 1.0) > _NARROW_BAND
        reserve_seconds = self._reserve_seconds(phase)
        decision = self._take(reason, phase.lengths, reserve_seconds, may_be_long=is_open)
        # What is new may be over before a window is.
        is_new = phase.hastened or not phase.seen.bursts
        return replace(decision, delay_cpu_seconds=0.0) if is_new else decision

    def skip(self, phase: int) -> None:
        """Note that a window of this phase is over, and that nobody asked about it."""
        self._pass_window(phase)

    def windows_left(self, phase: int | None) -> float:
        """Return after how many windows of a phase a burst will be due; 0 or less: it is."""
        if phase is None or phase not in self._phases:
            return math.inf
        return self._phases[phase].windows_left / self._needs.get(phase, 1.0)

    def _pass_window(self, id: int) -> _Phase:
        phase = self._phase(id)
        phase.weight, phase.weighed_at = self._weight(phase) + 1, self._now
        phase.age += 1
        phase.seen.windows += 1
        phase.windows_left -= self._needs.get(id, 1.0)
        return phase

    def _phase(self, phase: int) -> _Phase:
        if phase not in self._phases:
            self._phases[phase] = _Phase(BurstLengths(self._shape), weighed_at=self._now)
        return self._phases[phase]

    def pace(self, bursts: float, cpu_seconds: float) -> None:
        """Spread bursts so that what can be paid for lasts.

        Args:
            bursts: so many may be taken ...
            cpu_seconds: ... while the target uses so much CPU time; 0 tells nothing.
        """
        if not cpu_seconds > 0:
            return
        cost = self._costs.predict(self._shape.usual_accesses)
        bursts = min(bursts, self._bucket.affords(cpu_seconds) / cost if cost > 0 else math.inf)
        windows = cpu_seconds / self._window_seconds
        self._least_gap = windows / max(bursts, windows / self._max_gap)

    def weigh(self, scatter: Mapping[int, float], bands: Mapping[int, float]) -> None:
        """Tell what is known of phases that have bursts.

        Args:
            scatter: how much their bursts differ, see :mod:`memsampd.estimate.scatter`.
            bands: how wide the bounds of their miss ratios are, mean over sizes.
        """
        known = {id: each for id, each in scatter.items() if id in self._phases}
        self._needs = needs({id: self._phases[id].seen for id in known}, known)
        self._bands = bands

    def record(self, phase: int, accesses: int, cpu_seconds: float = 0.0) -> None:
        """Note that a burst was taken in a window of this phase.

        One shorter than the shortest worth a hold (a server's, between two calls) counts as that
        part of one, but for a quarter at least. The next is due so much sooner, or less so if it
        took a greater part of the own CPU time of a usual one: code that ends every burst at the
        hold limit must leave something for other phases. A burst that saw nothing does not count:
        the phase waits for a gap of the same mean and stays as uncertain as it was.
        """
        state = self._phase(phase)
        part = min(accesses / self._shape.min_accesses, 1.0)
        part = max(part, _LEAST_PART) if accesses > 0 else 0.0
        state.hastened = False
        if accesses > 0:
            state.seen.bursts += part
            state.seen.cpu_seconds += cpu_seconds
            state.drifted = False
        gap = max(state.age / self._resolution, self._first_gap, self._least_gap)
        mean_gap = min(gap, self._max_gap)
        if accesses > 0:
            mean_gap *= max(part, min(cpu_seconds / USUAL_CPU_SECONDS, 1.0))
        late = min(max(-state.windows_left, 0.0), _MOST_LATE) - _IN_WINDOW
        state.windows_left = self._rng.uniform(0.5, 1.5) * mean_gap - late

    def know(self, phase: int, windows: int, bursts: int) -> None:
        """Take a phase for known by so many windows and bursts from before the attach."""
        state = self._phase(phase)
        state.seen.bursts += bursts
        state.age = max(windows, round(_KNOWN_GAP * self._resolution))
        state.lengths = BurstLengths(self._shape, had_long=True)
        state.windows_left = self._rng.expovariate(1 / _CHECK_GAP)

    def is_new(self, phase: int | None) -> bool:
        """Whether a phase has no burst yet."""
        return phase is not None and not (phase in self._phases and self._phases[phase].seen.bursts)

    def restart(self) -> None:
        """Forget all phases: another program runs. What was spent stays spent."""
        super().restart()
        self._phases.clear()
        self._needs, self._bands = {}, {}

    def drift(self, phase: int) -> None:
        """Make a phase due again: its curve has changed."""
        state = self._phases.get(phase)
        if state is not None:
            state.age, state.windows_left = 0, 0.0
            state.lengths, state.drifted = BurstLengths(self._shape), True
            state.seen = PhaseNeed()
            self._needs.pop(phase, None)

    def hasten(self, phase: int | None) -> None:
        """Make a phase due now: it works on other data, by its pace."""
        if phase in self._phases and not self.is_new(phase):
            self._phases[phase].hastened = True
            self._phases[phase].windows_left = min(self._phases[phase].windows_left, 0.0)

    def merge(self, gone: int, into: int) -> None:
        """Carry over what is known of a phase that turned out to be another."""
        old = self._phases.pop(gone, None)
        if old is None:
            return
        new = self._phase(into)
        new.weight, new.weighed_at = self._weight(new) + self._weight(old), self._now
        new.age += old.age
        self._needs.pop(gone, None)
        if old.seen.bursts:
            # The better known of the two says when the next burst is due.
            if old.seen.bursts > new.seen.bursts:
                new.windows_left, new.lengths = old.windows_left, old.lengths
            new.drifted = new.drifted and old.drifted
        new.seen.absorb(old.seen)

    def _weight(self, phase: _Phase) -> float:
        return phase.weight * math.exp(-_AGING * (self._now - phase.weighed_at))

    def _urgency(self, phase: _Phase) -> tuple[bool, float]:
        """Never profiled ones first, then weight times uncertainty."""
        bursts = phase.seen.bursts
        return not bursts, self._weight(phase) / math.sqrt(max(bursts, 1))

    def _reserve_seconds(self, phase: _Phase) -> float:
        """What must be left for a more urgent phase that is due, too, and for new ones."""
        urgency, cost = self._urgency(phase), self._costs.predict(self._shape.min_accesses)
        is_second = any(
            other is not phase and other.windows_left <= 1 and self._urgency(other) > urgency
            for other in self._phases.values()
        )
        return cost * (is_second + _NEW_PHASES * (phase.seen.bursts > 0))

    def _savings_seconds(self) -> float:
        cost = self._costs.predict(self._shape.min_accesses)
        return super()._savings_seconds() + (1 + _NEW_PHASES) * cost
