"""What branch samples cost a target, and for which part of the time they are taken therefore."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from memsampd.sampler.perf.costs import SamplingCost, SwitchCost
from memsampd.sampler.perf.source import StreamedBranches
from memsampd.sampler.perf.switches import SwitchCounter, planned_share

# What switches cost is measured where they may take this part of what is allowed: it takes 10 ms.
_MATTERS_SHARE = 0.5


class Sampling(msgspec.Struct, frozen=True):
    """What branch samples cost a target.

    Attributes:
        seconds: estimate of the CPU time that they took from it: interrupts, and what switches
            between its threads and others took more.
        share: for this part of the time they are taken at present.
        why: why not all the time, or what that takes where it has to be; else empty.
    """

    seconds: float = 0.0
    share: float = 1.0
    why: str = ""


class SamplingPlan:
    """Charges a target for its samples, and has it sampled so that switches take what they may.

    Attributes:
        period_seconds: CPU time between two samples of what is sampled all the time.

    Args:
        source: where samples come from.
        cost: of sampling.
        allowed_share: of the target's CPU time: so much may sampling take at switches.
        switches: counts them.
        thinned: called when the share has changed.
        tell: tells people why.
        measure_switch: tells what a switch costs, by the monotonic time; asked while threads are
            switched to so often that it matters. None: it costs what ``cost`` says.
    """

    def __init__(
        self,
        source: StreamedBranches,
        cost: SamplingCost,
        allowed_share: float,
        switches: SwitchCounter,
        thinned: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = lambda words: None,
        measure_switch: Callable[[float], SwitchCost] | None = None,
    ) -> None:
        self._source, self._switch = source, cost.switch
        self._usual_switch_seconds = cost.switch.timer_seconds
        self._interrupt_seconds = cost.interrupt_seconds
        self._measure_switch = measure_switch
        self._allowed_share, self._switches = allowed_share, switches
        self._thinned, self._tell = thinned, tell
        self.period_seconds = source.period_seconds
        self._seconds = 0.0
        self._cpu_seconds = 0.0
        self._counted = 0
        self._counted_cpu_seconds, self._counted_at_seconds = 0.0, -math.inf

    def look(self, now_seconds: float, target_cpu_seconds: float) -> Sampling:
        """Charge what was, and plan what is to come.

        Args:
            now_seconds: monotonic time.
            target_cpu_seconds: CPU time of the target since the attach.

        Returns:
            What it came to so far.
        """
        source = self._source
        used = max(target_cpu_seconds - self._cpu_seconds, 0.0)
        self._cpu_seconds += used
        interrupts = used / (source.weight * source.period_seconds)
        self._seconds += interrupts * self._interrupt_seconds
        if self._switches.look(now_seconds):
            self._measure(now_seconds)
            switches = self._switches.switches - self._counted
            self._counted = self._switches.switches
            self._seconds += switches * self._switch_seconds(self._busy_share(now_seconds))
            self._plan()
        return Sampling(self._seconds, source.share, self._why())

    def _measure(self, now_seconds: float) -> None:
        """Ask what switches cost, if they may take so much that it matters."""
        seconds = max(self._switch.timer_seconds, self._usual_switch_seconds)
        taken_share = self._switches.per_cpu_second * seconds
        if self._measure_switch and taken_share > _MATTERS_SHARE * self._allowed_share:
            self._switch = self._measure_switch(now_seconds)

    def _busy_share(self, now_seconds: float) -> float:
        """For which part of the time since it was last asked the target used a CPU, 1 at most."""
        used = self._cpu_seconds - self._counted_cpu_seconds
        passed = now_seconds - self._counted_at_seconds
        self._counted_cpu_seconds, self._counted_at_seconds = self._cpu_seconds, now_seconds
        return min(used / max(passed, 1e-9), 1.0)

    def _switch_seconds(self, busy_share: float) -> float:
        """What sampling takes at a switch, in the mean."""
        often = busy_share * self._switches.per_cpu_second
        source = self._source
        return self._switch.mean_seconds(source.period_seconds, 1 / source.weight, often)

    def _plan(self) -> None:
        source = self._source
        if source.not_thinned:
            return
        share = planned_share(
            self._switches.per_cpu_second,
            self._switch,
            self.period_seconds,
            self._allowed_share,
            source.share,
        )
        if share != source.share:
            source.thin(share)
            self._thinned()
            self._tell(f"sampled for {100 * share:.2g} % of the time: {self._why()}")

    def _why(self) -> str:
        """Why it is sampled for a part of the time, or what that costs where it cannot be."""
        source, often = self._source, self._switches.per_cpu_second
        took = often * self._switch.sampled_seconds(self.period_seconds)
        if source.share == 1 and not (source.not_thinned and took > self._allowed_share):
            return ""
        words = (
            f"its threads are switched to {often:,.0f} times in a second of their CPU time: "
            f"sampling all the time would take {100 * took:.0f} % of it"
        )
        if source.share == 1:
            words = words.replace("would take", "takes") + f" (not less, as {source.not_thinned})"
        return words
