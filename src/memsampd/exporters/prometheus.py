"""Snapshots as Prometheus metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from memsampd import __version__
from memsampd.estimate.records import Estimate
from memsampd.exporters import catalogue
from memsampd.exporters.curves import at_size, fills, shown_sizes, thin_curve
from memsampd.exporters.exposition import Exposition, Sample
from memsampd.exporters.folding import ShownPhase, fold_phases, fold_reasons
from memsampd.exporters.metric import Metric
from memsampd.exporters.shown import KEPT_SECONDS, ShownSnapshots
from memsampd.exporters.snapshot import AddressTally, NodeStatus, Snapshot
from memsampd.exporters.traffic import (
    largest_cache_bytes,
    mean_write_share,
    mebibyte_gain,
    phase_traffic,
    traffic_totals,
    whole_traffic,
    write_share_of,
)
from memsampd.models.records import MissRatioCurve
from memsampd.names import printable

MAX_SIZES = 32
MAX_PHASES = 16
MAX_REASONS = 20


class PrometheusExporter:
    """Shows the last snapshot of every target; when it ended, once.

    Args:
        max_sizes: sizes shown of a curve.
        max_phases: phases shown of a target; the lighter ones are folded into "other".
        kept_seconds: for so long the last state of a target that ended waits for a reader.

    Attributes:
        version: how often something was published.
    """

    def __init__(
        self,
        *,
        max_sizes: int = MAX_SIZES,
        max_phases: int = MAX_PHASES,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        self._max_sizes = max_sizes
        self._max_phases = max_phases
        self._lock = threading.Lock()
        self._shown = ShownSnapshots(kept_seconds=kept_seconds)
        self._node: NodeStatus | None = None
        self._exposition = Exposition()
        self.version = 0

    def publish(self, snapshot: Snapshot) -> None:
        """Show this state of its target; that of a dead one until it has been read once."""
        with self._lock:
            self.version += 1
            self._shown.show(snapshot)

    @property
    def is_unread(self) -> bool:
        """Whether a state of a target was published that nobody has read."""
        return self._shown.is_unread

    def publish_node(self, status: NodeStatus) -> None:
        """Show this state of the daemon from now on."""
        with self._lock:
            self.version += 1
            self._node = status

    def close(self) -> None:
        """Show no target any more."""
        with self._lock:
            self.version += 1
            self._shown.clear()
            self._node = None

    def text(self, open_metrics: bool) -> bytes:
        """Return all samples as text; for one thread at a time.

        Args:
            open_metrics: the format is OpenMetrics; else the older one.
        """
        return self._exposition.text(self.samples(), open_metrics=open_metrics)

    def samples(self) -> Iterator[Sample]:
        """Yield what there is to show now."""
        with self._lock:
            node, snapshots = self._node, self._shown.read()
            if not all(each.alive for each in snapshots):  # the next reader is shown something else
                self.version += 1
        yield catalogue.BUILD_INFO, (__version__,), 1
        yield from _peak_samples(snapshots)
        if node is not None:
            yield from _node_samples(node)
        for snapshot in snapshots:
            target = (str(snapshot.target.pid), printable(snapshot.target.command))
            for metric, labels, value in self._samples(snapshot):
                yield metric, (*target, *map(printable, labels)), value

    def _samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        yield from _session_samples(snapshot)
        yield from _traffic_samples(snapshot)
        yield from self._counter_samples(snapshot.estimate)
        for curve in snapshot.estimate.curves.values():
            yield from self._curve_samples(_OVERALL, (), curve)
        usual = mean_write_share(snapshot.estimate.phases)
        for shown in fold_phases(snapshot, self._max_phases):
            yield from _phase_samples(shown, snapshot)
            yield from _phase_traffic_samples(shown, snapshot, usual)
            for curve in shown.estimate.curves.values():
                yield from self._curve_samples(_BY_PHASE, (shown.label,), curve)

    def _counter_samples(self, estimate: Estimate) -> Iterator[Sample]:
        if not estimate.totals.accesses > 0:
            return
        yield catalogue.ACCESSES, (), estimate.totals.accesses
        keep = shown_sizes(len(estimate.sizes_bytes), self._max_sizes)
        for policy, misses in estimate.totals.misses.items():
            shown = zip(_labels(estimate.sizes_bytes[keep]), misses[keep].tolist(), strict=True)
            yield from ((catalogue.MISSES, (policy, size), value) for size, value in shown)

    def _curve_samples(
        self, metrics: tuple[Metric, Metric, Metric], labels: tuple[str, ...], curve: MissRatioCurve
    ) -> Iterator[Sample]:
        curve = thin_curve(curve, self._max_sizes)
        sizes = [(*labels, curve.policy, size) for size in _labels(curve.sizes_bytes)]
        for metric, values in zip(metrics, (curve.miss_ratio, curve.low, curve.high), strict=True):
            yield from zip(repeat(metric), sizes, values.tolist(), strict=False)


def _labels(sizes_bytes: NDArray[np.int64]) -> list[str]:
    return [str(int(size)) for size in sizes_bytes.tolist()]


_OVERALL = (catalogue.MISS_RATIO, catalogue.MISS_LOW_RATIO, catalogue.MISS_HIGH_RATIO)
_BY_PHASE = (
    catalogue.PHASE_MISS_RATIO,
    catalogue.PHASE_MISS_LOW_RATIO,
    catalogue.PHASE_MISS_HIGH_RATIO,
)


def _session_samples(snapshot: Snapshot) -> Iterator[Sample]:
    yield from ((metric, (), value) for metric, value in _figures(snapshot) if value is not None)
    yield from _cache_samples(snapshot)
    if (addresses := snapshot.addresses) != AddressTally():
        yield catalogue.ADDRESSES, ("valid",), addresses.samples
        yield catalogue.ADDRESSES, ("invalid",), addresses.invalid
        yield catalogue.ADDRESSES, ("lost",), addresses.lost
        yield catalogue.ADDRESS_THROTTLES, (), addresses.throttled
    if snapshot.trouble:
        yield catalogue.NO_BURSTS, (snapshot.trouble,), 1
    for role, name in snapshot.backend.items():
        yield catalogue.BACKEND_INFO, (role, name), 1
    for end, count in snapshot.burst_ends.items():
        yield catalogue.BURSTS, (str(end),), count
    for reason, count in fold_reasons(snapshot.errors, MAX_REASONS).items():
        yield catalogue.CAPTURE_ERRORS, (reason,), count


def _figures(snapshot: Snapshot) -> list[tuple[Metric, float | None]]:
    """What has no labels but the target's; None: not known."""
    cost, tally, estimate = snapshot.overhead, snapshot.tally, snapshot.estimate
    unknown = estimate.unknown_cpu_seconds / estimate.cpu_seconds if estimate.windows else None
    return [
        (catalogue.TARGET_UP, snapshot.alive),
        (catalogue.WINDOWS, estimate.windows),
        (catalogue.WINDOW_CPU, estimate.cpu_seconds),
        (catalogue.PHASES, len(estimate.phases)),
        (catalogue.UNKNOWN_CPU, unknown),
        (catalogue.SAMPLED, tally.accesses),
        (catalogue.PREDICTION_ACCURACY, snapshot.prediction_accuracy),
        (catalogue.SAMPLES, snapshot.samples),
        (catalogue.LOST, snapshot.lost),
        (catalogue.THROTTLES, snapshot.throttled),
        (catalogue.TARGET_CPU, cost.target_cpu_seconds),
        (catalogue.PLAUSIBLE, tally.plausible),
        (catalogue.CALLS, tally.calls),
        (catalogue.CALLS_COMPARED, tally.calls_compared),
        (catalogue.CALLS_EQUAL, tally.calls_equal),
        (catalogue.PAGES_PREDICTED, tally.pages_predicted),
        (catalogue.PAGES_MISSED, tally.pages_missed),
        (catalogue.CUT_SHORT, tally.cut_short),
        (catalogue.STORED_BURSTS, sum(phase.stored_bursts for phase in estimate.phases)),
        (catalogue.STORE_DROPS, snapshot.store_drops),
        (catalogue.WATCHES, snapshot.watches),
        (catalogue.HOLD, cost.stop_seconds),
        (catalogue.LONGEST_HOLD, cost.longest_stop_seconds),
        (catalogue.HITS, cost.hit_seconds),
        (catalogue.TAKEN_CPU, cost.taken_cpu_seconds),
        (catalogue.SAMPLING, cost.sampling_seconds),
        (catalogue.SAMPLED_SHARE, cost.sampled_share),
        (catalogue.OWN_CPU, cost.own_cpu_seconds),
        (catalogue.REPLICA_CPU, cost.replica_cpu_seconds),
        (catalogue.OWN_CPU_LIMIT, cost.own_cpu_share),
        (catalogue.OWN_CPU_WAIT, cost.own_cpu_waited_seconds),
        (catalogue.OVERHEAD_SPENT, cost.spent_share),
        (catalogue.OVERHEAD_BUDGET, cost.budget_share),
        (catalogue.RATE, estimate.rate.accesses_per_cpu_second),
        (catalogue.RATE_SPREAD, estimate.rate.spread),
        (catalogue.RATE_KNOWN, estimate.rate_known_share if estimate.windows else None),
    ]


def _cache_samples(snapshot: Snapshot) -> Iterator[Sample]:
    """What is told of each cache of the machine."""
    estimate = snapshot.estimate
    rate, curve = estimate.rate.accesses_per_cpu_second, estimate.curves.get("lru")
    for level, fill in fills(curve, rate, snapshot.cache_sizes_bytes):
        yield catalogue.BANDWIDTH, (level,), fill
    for level, size_bytes in snapshot.cache_sizes_bytes.items():
        yield catalogue.CACHE_SIZE, (level,), size_bytes
        point = at_size(curve, size_bytes) if curve is not None else None
        if point is not None:
            yield catalogue.BAND, (level,), point.high - point.low


def _phase_samples(shown: ShownPhase, snapshot: Snapshot) -> Iterator[Sample]:
    phase = shown.estimate
    rate = phase.rate.accesses_per_cpu_second
    plain: list[tuple[Metric, float | None]] = [
        (catalogue.PHASE_ACTIVE, snapshot.phase in shown.ids),
        (catalogue.PHASE_PREDICTED, snapshot.predicted_phase in shown.ids),
        (catalogue.PHASE_WEIGHT, phase.weight),
        (catalogue.PHASE_WINDOWS, phase.windows),
        (catalogue.PHASE_CPU, phase.cpu_seconds),
        (catalogue.PHASE_BURSTS, phase.bursts),
        (catalogue.PHASE_SAMPLED, phase.sampled_accesses),
        (catalogue.PHASE_CENSORED, phase.censored_share if phase.sampled_accesses else None),
        (catalogue.PHASE_WRITES, phase.write_share if phase.sampled_accesses else None),
        (catalogue.PHASE_CPI, phase.cycles_per_instruction),
        (catalogue.PHASE_RATE, rate),
        (catalogue.PHASE_RATE_SPREAD, phase.rate.spread),
    ]
    yield from ((metric, (shown.label,), value) for metric, value in plain if value is not None)
    for level, fill in fills(phase.curves.get("lru"), rate, snapshot.cache_sizes_bytes):
        yield catalogue.PHASE_BANDWIDTH, (shown.label, level), fill


def _traffic_samples(snapshot: Snapshot) -> Iterator[Sample]:
    totals = traffic_totals(snapshot)
    if totals is not None:
        fetched, written_back = totals
        yield catalogue.MEMORY_FETCHED, (), fetched
        yield catalogue.MEMORY_WRITTEN, (), written_back
    traffic = whole_traffic(snapshot)
    if traffic is not None:
        yield catalogue.MEMORY_LOW, (), traffic.low
        yield catalogue.MEMORY_HIGH, (), traffic.high
    curve = snapshot.estimate.curves.get("lru")
    for level, size_bytes in snapshot.cache_sizes_bytes.items():
        gain = mebibyte_gain(curve, size_bytes) if curve is not None else None
        if gain is not None:
            yield catalogue.MEBIBYTE_GAIN, (level,), gain


def _phase_traffic_samples(
    shown: ShownPhase, snapshot: Snapshot, usual_write_share: float | None
) -> Iterator[Sample]:
    phase = shown.estimate
    traffic = phase_traffic(
        phase.curves.get("lru"),
        phase.rate.accesses_per_cpu_second,
        write_share_of(phase, usual_write_share),
        largest_cache_bytes(snapshot.cache_sizes_bytes),
    )
    if traffic is None:
        return
    yield catalogue.PHASE_MEMORY, (shown.label,), traffic.total
    if snapshot.memory_peak is not None:
        peak = snapshot.memory_peak.one_thread
        share = peak.share(traffic.fetched, traffic.written_back)
        yield catalogue.PHASE_MEMORY_SHARE, (shown.label,), share


def _peak_samples(snapshots: Iterable[Snapshot]) -> Iterator[Sample]:
    """Yield the machine's peak once, whichever target's snapshot has it."""
    peak = next((each.memory_peak for each in snapshots if each.memory_peak is not None), None)
    if peak is not None:
        for threads, part in (("one", peak.one_thread), ("all", peak.all_threads)):
            if part is None:
                continue
            yield catalogue.MEMORY_PEAK, ("read", threads), part.read
            yield catalogue.MEMORY_PEAK, ("write", threads), part.write


def _node_samples(status: NodeStatus) -> Iterator[Sample]:
    for state, count in status.by_state().items():
        yield catalogue.NODE_TARGETS, (state,), count
    plain: list[tuple[Metric, float]] = [
        (catalogue.NODE_LEFT_OUT, status.left_out),
        (catalogue.NODE_ENDED, status.ended_targets),
        (catalogue.NODE_OWN_CPU, status.own_cpu_seconds),
        (catalogue.NODE_OWN_CPU_BUDGET, status.own_cpu_budget_share),
        (catalogue.NODE_HOLD, status.stop_seconds),
        (catalogue.NODE_HOLD_BUDGET, status.stop_budget_share),
        (catalogue.NODE_RESIDENT, status.rss_bytes),
        (catalogue.NODE_DESCRIPTORS, status.open_descriptors),
        (catalogue.NODE_LOOP, status.loop_seconds),
        (catalogue.NODE_RELOAD_FAILED, bool(status.reload_trouble)),
        (catalogue.NODE_STORE_FAILED, bool(status.store_trouble)),
    ]
    yield from ((metric, (), value) for metric, value in plain)
