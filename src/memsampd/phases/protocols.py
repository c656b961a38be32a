"""The seams of the phase detector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from memsampd.phases.records import Assignment, Decision, Window


@runtime_checkable
class WindowClusterer(Protocol):
    """Puts windows into phases, online.

    Contract: ids are stable and dense from 0; the same windows give the same ids; the number of
    live phases is bounded; a window's vector is compared with its noise in mind.
    """

    def assign(self, window: Window) -> Assignment:
        """Learn one window and say which phase it belongs to."""


@runtime_checkable
class Predictor(Protocol):
    """Guesses the phase of the next window."""

    def observe(self, phase: int) -> None:
        """Learn the phase of the window that just ended."""

    def predict(self) -> int | None:
        """Guess the next one's; None before anything was seen."""

    def merge(self, gone: int, into: int) -> None:
        """Forget a phase that turned out to be another."""


@runtime_checkable
class Schedule(Protocol):
    """Decides which windows are worth a burst.

    Contract: ``decide`` is called with the *predicted* phase of the coming window, ``skip`` for
    each window that went by without that because several had ended at once, or a burst was awaited,
    or could not be had; ``spend`` once for
    each burst that was taken, or tried in vain, with what it cost the target; ``record`` once its
    phase is known; ``drift`` when a phase's curve changed; ``pace`` before it is asked, and
    ``weigh`` when there is a new burst, where anybody can tell. Costs are seconds (of holding a
    thread, of breakpoints' hits). ``takes_bursts`` is False if it never decides for one. Methods
    that return at once need not be written: to some schedules phases are all the same.
    """

    name: str
    takes_bursts: bool

    @property
    def balance_seconds(self) -> float:
        """What bursts may cost the target now; negative while a debt is worked off."""

    @property
    def can_pay(self) -> bool:
        """Whether the budget holds enough for the shortest burst."""

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""

    def skip(self, phase: int) -> None:
        """Note that a window of this phase is over, and that nobody asked about it."""

    def windows_left(self, phase: int | None) -> float:
        """Return after how many windows of a phase a burst will be due; infinite if nobody knows.

        0 or less: it is due, and something was in the way.
        """

    def spend(self, accesses: int, cost_seconds: float) -> None:
        """Pay for a burst."""

    def charge(self, cost_seconds: float) -> None:
        """Pay for something else than a burst: it leaves less for these."""

    def record(self, phase: int, accesses: int, cpu_seconds: float = 0.0) -> None:
        """Note that a burst was taken in a window of this phase.

        Args:
            phase: the phase.
            accesses: length of the burst.
            cpu_seconds: memsampd's own CPU time that it took.
        """
        return

    def pace(self, bursts: float, cpu_seconds: float) -> None:
        """Tell how many bursts may be taken while the target uses so much CPU time."""
        return

    def weigh(self, scatter: Mapping[int, float], bands: Mapping[int, float]) -> None:
        """Tell what is known of phases that have bursts, by phase.

        Args:
            scatter: how much their bursts differ, in any unit.
            bands: how wide the bounds of their miss ratios are, mean over sizes.
        """
        return

    def elapse(self, cpu_seconds: float) -> None:
        """Tell how much CPU time the target has used since the last call: it feeds the budget."""

    def drift(self, phase: int) -> None:
        """Make a phase due again: its curve has changed."""
        return

    def hasten(self, phase: int | None) -> None:
        """Make a phase due now: it works on other data, by its pace."""
        return

    def merge(self, gone: int, into: int) -> None:
        """Carry over what is known of a phase that turned out to be another."""
        return

    def know(self, phase: int, windows: int, bursts: int) -> None:
        """Take a phase for known by so many windows and bursts from before the attach."""
        return

    def is_new(self, phase: int | None) -> bool:
        """Whether a phase has no burst yet, as far as phases matter to it."""

    def restart(self) -> None:
        """Forget all phases: another program runs. What was spent stays spent."""
