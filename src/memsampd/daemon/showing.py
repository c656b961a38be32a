"""What is shown of a session: its state, to whom and when."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence

from memsampd.daemon.session_parts import Recorder, SessionParts, State
from memsampd.exporters.protocols import AskedExporter, Exporter, PastExporter
from memsampd.exporters.snapshot import Snapshot, TargetInfo

_PUBLISH_SECONDS = 1.0  # as often as a Prometheus may ask
_FIRST_SECONDS = 0.25  # by then there mostly is a curve
_UNASKED_SECONDS = 5.0  # while nobody does: to work the state out costs what some turns do


class Publisher:
    """Shows states to exporters, as often as somebody may look.

    Args:
        exporters: shown every state.
        recorders: those of them that keep records, too: nobody reads these.
        parts: of the session.
    """

    def __init__(
        self, exporters: Sequence[Exporter], recorders: Iterable[Recorder], parts: SessionParts
    ) -> None:
        self._exporters = tuple(exporters)
        kept = {id(each) for each in recorders}
        self._asked = [  # None: it shows all that it is told
            each if isinstance(each, AskedExporter) else None
            for each in self._exporters
            if id(each) not in kept
        ]
        self._keeper = parts.keeper
        self._past = parts.past  # until it has been told
        self._started_seconds = self._published_seconds = parts.started_seconds

    @property
    def is_unread(self) -> bool:
        """Whether somebody who is served has not read the last state."""
        return any(each is None or each.is_unread for each in self._asked)

    def is_due(self, *, is_known: bool = False, is_asked: bool = False) -> bool:
        """Whether it is time; sooner at first, and where a display has the state worked out.

        Args:
            is_known: the state is worked out.
            is_asked: somebody is about to read it; always so of exporters that do not ask.
        """
        since = time.monotonic() - self._published_seconds
        observed = self._published_seconds - self._started_seconds
        is_asked = is_asked or None in self._asked
        longest = _PUBLISH_SECONDS if is_asked else _UNASKED_SECONDS
        spacing = min(max(observed, _FIRST_SECONDS), longest)
        if is_known:
            spacing = min(spacing, _PUBLISH_SECONDS) / 2
        return since >= spacing

    def publish(self, target: TargetInfo, state: State) -> None:
        """Show the present state to all exporters, and what the target did before, once."""
        self._published_seconds = time.monotonic()
        if self._past is not None:
            for exporter in self._exporters:
                if isinstance(exporter, PastExporter):
                    exporter.publish_past(target, self._past)
            self._past = None
        if self._keeper is not None:
            self._keeper.publish(state())
        for exporter in self._exporters:
            exporter.publish(state())


def present_state(
    parts: SessionParts,
    target: TargetInfo,
    *,
    is_alive: bool,
    is_let_go: bool = False,
    only: Collection[int] | None = None,
) -> Snapshot:
    """The state of a session.

    Args:
        parts: what it is composed of now.
        target: who it is now.
        is_alive: whether it is observed still.
        is_let_go: it is not, though it has not ended.
        only: of its estimate, these phases are enough; None: all are wanted.
    """
    pipeline = parts.pipeline
    estimator, program = pipeline.parts.estimator, pipeline.program
    counts, ledger = pipeline.counts, pipeline.parts.ledger
    return Snapshot(
        target=target,
        alive=is_alive,
        time_seconds=time.monotonic(),
        backend=parts.backend,
        window=program.window,
        phase=program.phase,
        predicted_phase=program.predicted_phase,
        prediction_accuracy=program.accuracy.overall,
        estimate=estimator.estimate(only),
        cache_sizes_bytes=parts.cache_sizes_bytes,
        samples=counts.samples,
        child_share=counts.child_share,
        lost=counts.lost,
        throttled=counts.throttled,
        burst_ends=dict(counts.ends),
        errors=dict(counts.errors),
        refusals=dict(counts.words),
        tally=counts.tally,
        overhead=ledger.overhead(),
        idle_seconds=ledger.idle_seconds,
        trouble=pipeline.trouble,
        memory_peak=parts.memory_peak,
        store_drops=counts.store_drops,
        watches=counts.watches,
        addresses=counts.addresses,
        is_let_go=is_let_go,
    )
