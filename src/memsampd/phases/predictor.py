"""Run-length Markov prediction of phases."""

from __future__ import annotations

State = tuple[int, ...]
"""(previous phase, phase, windows it has lasted) or, the shorter one, (phase, windows)."""

_MAX_RUN = 128  # windows: longer runs count as this one
_MIN_SUPPORT = 2  # a state that was met more rarely is not believed
_MEMORY = 32  # times that a state was met, after which its counts are halved
MAX_STATES = 8192
"""States kept; the one met longest ago goes first."""


class RunLengthMarkov:
    """Predicts from the phase, how long it has lasted and what came before it.

    Two tables of states are kept: with the phase before, which tells the second from the third
    A in A B A C, and without it, which learns faster. The longer state that was met
    twice decides, else the shorter one, else the last value stays. Counts are
    halved when a state was met 32 times, so a changed habit is relearned.

    References:
        Sherwood, Sair, Calder: Phase tracking and prediction, ISCA 2003 (the
        run-length encoding Markov predictor).

    Examples:
        >>> predictor = RunLengthMarkov()
        >>> for phase in [0, 0, 0, 1, 1] * 4:
        ...     predictor.observe(phase)
        >>> predictor.predict()
        0
    """

    def __init__(self) -> None:
        self._followers: dict[State, dict[int, float]] = {}
        self._previous: int | None = None
        self._phase: int | None = None
        self._run = 0

    def observe(self, phase: int) -> None:
        """Learn the phase of the window that just ended."""
        for state in self._states():
            self._count(state, phase)
        if phase == self._phase:
            self._run = min(self._run + 1, _MAX_RUN)
        else:
            self._previous, self._phase, self._run = self._phase, phase, 1

    def predict(self) -> int | None:
        """Guess the next one's; None before anything was seen."""
        for state in self._states():
            followers = self._followers.get(state, {})
            if sum(followers.values()) >= _MIN_SUPPORT:
                # At equal counts the lower id: the order of insertion must not matter.
                return min(followers, key=lambda phase: (-followers[phase], phase))
        return self._phase

    def merge(self, gone: int, into: int) -> None:
        """Forget a phase that turned out to be another."""
        old, self._followers = self._followers, {}
        for state, followers in old.items():
            # The last entry of a state is a run length, not a phase.
            phases = tuple(into if phase == gone else phase for phase in state[:-1])
            target = self._followers.setdefault((*phases, state[-1]), {})
            for phase, count in followers.items():
                phase = into if phase == gone else phase
                target[phase] = target.get(phase, 0) + count
        if self._phase == gone:
            self._phase = into
        if self._previous == gone:
            self._previous = into

    def _states(self) -> list[State]:
        if self._phase is None:
            return []
        states: list[State] = [(self._phase, self._run)]
        if self._previous is not None:
            states.insert(0, (self._previous, self._phase, self._run))
        return states

    def _count(self, state: State, follower: int) -> None:
        followers = self._followers.pop(state, {})
        followers[follower] = followers.get(follower, 0) + 1
        if sum(followers.values()) > _MEMORY:
            followers = {p: count / 2 for p, count in followers.items() if count >= 1}
        if len(self._followers) >= MAX_STATES:
            del self._followers[next(iter(self._followers))]
        self._followers[state] = followers  # now the last: the one met most recently
