"""What a target loses to slower copies while words of its memory are watched, and for how long."""

from __future__ import annotations

import math
from collections import Counter

from memsampd.sampler.perf.watch import Watched
from memsampd.sampler.perf.watching_cost import WatchingCost
from memsampd.sampler.perf.watchpoints import PATIENCE_SECONDS

_AT_ONCE_SECONDS = 0.005
"""CPU time that one watch may take so: as long as a thread is held for a burst."""
# Words are watched no more where copies have taken so much lately: their number may have risen.
_ENDING_SECONDS = 2 * _AT_ONCE_SECONDS
_SHORTEST_SECONDS = 0.005  # of a watch: else copies take most of the time, and none is made
_HALF_LIFE_SECONDS = 0.5  # CPU time after which what the kernel copied counts half
# Where hits by the kernel are not seen, and so not limited, each copied byte may trap.
_UNSEEN_SECONDS = 1e-9


class CopyLoss:
    """Knows how much a target copies, and what that takes longer while a word is watched.

    Args:
        cost: of watching.

    Attributes:
        kernel_seconds: CPU time that all copies by the kernel so far would have taken longer.
    """

    def __init__(self, cost: WatchingCost) -> None:
        self._cost = cost
        self._kernel_seconds_a_byte = cost.repeat_seconds
        if not cost.sees_kernel:
            self._kernel_seconds_a_byte += _UNSEEN_SECONDS
        self._paid_until_seconds = -math.inf
        self.kernel_seconds = 0.0
        self._present_seconds = 0.0
        self.restart()

    def restart(self) -> None:
        """Another program."""
        self._lately_seconds = self._cpu_seconds = 0.0  # as kernel_seconds, and all CPU time
        self._running = 1.0  # threads that run at a time; they are watched together
        self._is_told = True
        self._repeats: Counter[int] = Counter()  # by phase, in bursts
        self._accesses: Counter[int] = Counter()

    def elapse(
        self,
        cpu_seconds: float,
        copied_bytes: int | None,
        busy_share: float = 1.0,
        *,
        user_share: float | None = None,
    ) -> None:
        """Note what the kernel copied for the target while it used so much CPU time.

        Args:
            cpu_seconds: CPU time.
            copied_bytes: None where that is not told.
            busy_share: CPU seconds that it uses a second.
            user_share: of user mode, if words were watched meanwhile.
        """
        kept = 0.5 ** (cpu_seconds / _HALF_LIFE_SECONDS)
        kernel_seconds = self._kernel_seconds_a_byte * (copied_bytes or 0)
        self.kernel_seconds += kernel_seconds
        if user_share is None:
            self._present_seconds = 0.0
        else:
            lost_seconds = kernel_seconds + user_share * cpu_seconds
            self._present_seconds = kept * self._present_seconds + lost_seconds
        self._running = max(busy_share, 1.0)
        self._is_told = copied_bytes is not None
        self._lately_seconds = kept * self._lately_seconds + kernel_seconds
        self._cpu_seconds = kept * self._cpu_seconds + cpu_seconds

    def add_burst(self, phase: int, repeats: int, accesses: int) -> None:
        """Note how many elements string instructions moved in a burst, and its accesses."""
        self._repeats[phase] += repeats
        self._accesses[phase] += accesses

    def merge(self, gone: int, into: int) -> None:
        """Make two phases one."""
        for counts in (self._repeats, self._accesses):
            counts[into] += counts.pop(gone, 0)

    def _kernel_share(self) -> float:
        """CPU time lost in the kernel a CPU second; not finite where nobody knows."""
        if self._kernel_seconds_a_byte == 0:
            return 0.0
        if not self._is_told or self._cpu_seconds == 0:
            return math.inf
        return self._lately_seconds / self._cpu_seconds

    def user_share(self, phase: int, accesses_per_cpu_second: float) -> float:
        """CPU time lost in user mode a CPU second, by what bursts of a phase say."""
        accesses = self._accesses[phase]
        if accesses == 0:
            return 0.0
        repeats_per_access = self._repeats[phase] / accesses
        return self._cost.repeat_seconds * repeats_per_access * accesses_per_cpu_second

    def limit_seconds(self, user_share: float) -> float | None:
        """For how long words may be watched, CPU seconds of a thread.

        Returns:
            None: as long as one likes; 0: not at all.
        """
        share = self._running * (user_share + self._kernel_share())
        limit = _AT_ONCE_SECONDS / share if share > 0 else math.inf
        if limit >= PATIENCE_SECONDS:
            return None
        return limit if limit >= _SHORTEST_SECONDS else 0.0

    @property
    def is_too_much(self) -> bool:
        """Whether words have been watched for long enough: the target copies more than before."""
        return self._present_seconds > _ENDING_SECONDS

    def lost_seconds(self, watched: Watched, user_share: float, kernel_since: float) -> float:
        """CPU time that a watch took so; what others took at the same time was told with them.

        Args:
            watched: what came of it.
            user_share: CPU time lost in user mode a CPU second.
            kernel_since: :attr:`kernel_seconds` when it began.
        """
        begin, end = watched.times_seconds[0], watched.times_seconds[-1]
        fresh = end - max(begin, self._paid_until_seconds)
        self._paid_until_seconds = max(self._paid_until_seconds, end)
        if fresh <= 0:
            return 0.0
        part, cpu_seconds = fresh / (end - begin), self._running * watched.cpu_seconds[-1]
        if watched.order.limit_seconds is None:
            in_user_mode = cpu_seconds * user_share / (1 + user_share)
            return part * (self.kernel_seconds - kernel_since + in_user_mode)
        # The kernel ended it between two turns.
        share = user_share + self._kernel_share()
        return part * cpu_seconds * share / (1 + share) if math.isfinite(share) else 0.0
