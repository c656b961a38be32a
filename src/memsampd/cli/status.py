"""What a session looks like while it runs: a live block on a terminal, lines, or JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TextIO

from memsampd.exporters.curves import at_size
from memsampd.exporters.snapshot import Overhead, PhaseSnapshot, Snapshot
from memsampd.phases.records import Assignment, Window

_REDRAW_SECONDS = 0.25
_BARS = "▁▂▃▄▅▆▇█"
_SPARK_LIMIT_BYTES = 64 << 20


def _size(size_bytes: int) -> str:
    for unit, scale in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << scale:
            return f"{size_bytes / (1 << scale):.4g} {unit}"
    return f"{size_bytes} B"


def _phase_of(snapshot: Snapshot) -> PhaseSnapshot | None:
    return next((phase for phase in snapshot.phases if phase.id == snapshot.phase), None)


def cache_ratios(snapshot: Snapshot, policy: str = "lru") -> list[tuple[str, int, str]]:
    """The current phase's miss ratio at each of this machine's caches, as text with its bounds."""
    phase = _phase_of(snapshot)
    curve = phase.curves.get(policy) if phase is not None else None
    found = []
    for name, size_bytes in snapshot.cache_sizes_bytes.items():
        point = at_size(curve, size_bytes) if curve is not None else None
        if point is None:
            text = "?"
        elif point.is_uncertain:
            text = f"{100 * point.low:.1f}..{100 * point.high:.1f} %"
        else:
            text = f"{100 * point.miss_ratio:.1f} %"
        found.append((name, size_bytes, text))
    return found


def spark(snapshot: Snapshot, policy: str = "lru") -> str:
    """The current phase's curve from 1 KiB to 64 MiB, one character a size."""
    phase = _phase_of(snapshot)
    curve = phase.curves.get(policy) if phase is not None else None
    if curve is None:
        return ""
    return "".join(
        _BARS[min(int(ratio * len(_BARS)), len(_BARS) - 1)]
        for size_bytes, ratio in zip(curve.sizes_bytes, curve.miss_ratio, strict=True)
        if size_bytes <= _SPARK_LIMIT_BYTES
    )


def status_lines(snapshot: Snapshot) -> list[str]:
    """The live block."""
    phase = _phase_of(snapshot)
    bursts = sum(snapshot.burst_ends.values())
    refused = sum(snapshot.errors.values())
    overhead = snapshot.overhead
    accuracy = snapshot.prediction_accuracy
    sampled = 100 * overhead.sampling_seconds / max(overhead.target_cpu_seconds, 1e-9)
    lines = [
        f"{snapshot.target.command} ({snapshot.target.pid})  phase "
        f"{'?' if snapshot.phase is None else snapshot.phase} of {len(snapshot.phases)}"
        f"  windows {snapshot.windows}  bursts {bursts}"
        + (f" ({refused} not possible)" if refused else "")
        + (f"  predicted {100 * accuracy:.0f} %" if accuracy is not None else ""),
        "miss ratio (LRU)  "
        + "  ".join(f"{name} {_size(size)}: {text}" for name, size, text in cache_ratios(snapshot)),
        f"1 KiB {spark(snapshot) or '(no burst in this phase yet)'} 64 MiB"
        + (f"  from {phase.sampled_accesses:,} accesses" if phase is not None else ""),
        f"cost {100 * overhead.spent_share:.2f} % of the target's CPU time (budget "
        f"{100 * overhead.budget_share:g} %), held {1e3 * overhead.stop_seconds:.1f} ms,"
        f" at most {1e3 * overhead.longest_stop_seconds:.1f} at once, sampling {sampled:.2f} %;"
        f" samples {snapshot.samples:,}, lost {snapshot.lost}",
        own_cpu_line(overhead),
    ]
    if snapshot.trouble:
        lines.append(f"no bursts: {snapshot.trouble}")
    return lines


def own_cpu_line(overhead: Overhead) -> str:
    """What memsampd's processes used, and whether bursts wait for that."""
    limit = f"limit {100 * overhead.own_cpu_share:g} % of the target's"
    line = f"own CPU {overhead.own_cpu_seconds:.1f} s ({limit})"
    if overhead.waits_for_own_cpu:
        return f"{line}: bursts wait for it, so far {overhead.own_cpu_waited_seconds:.1f} s"
    if overhead.own_cpu_waited_seconds > 0:
        return f"{line}: bursts waited {overhead.own_cpu_waited_seconds:.1f} s for it"
    return line


class LiveStatus:
    """Redraws a block of lines in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._height = 0
        self._drawn_seconds = 0.0

    def window(self, window: Window, assignment: Assignment, state: Callable[[], Snapshot]) -> None:
        """Show the state, at most some times a second."""
        if self._is_due():
            self._draw(state())

    def idle(self, snapshot: Snapshot) -> None:
        """Show the state, at most some times a second."""
        if self._is_due():
            self._draw(snapshot)

    def _is_due(self) -> bool:
        return time.monotonic() - self._drawn_seconds >= _REDRAW_SECONDS

    def _draw(self, snapshot: Snapshot) -> None:
        self._drawn_seconds = time.monotonic()
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except OSError:
            columns = 80
        lines = [line[: columns - 1] for line in status_lines(snapshot)]
        back = f"\x1b[{self._height}F" if self._height else ""
        self._stream.write(back + "".join(f"\x1b[2K{line}\n" for line in lines))
        self._stream.flush()
        self._height = len(lines)


class PlainStatus:
    """A line a change of phase, and one now and then."""

    _EVERY_SECONDS = 5.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._phase: int | None = None
        self._said_seconds = 0.0
        self._is_in_trouble = False
        self._has_waited = False

    def window(self, window: Window, assignment: Assignment, state: Callable[[], Snapshot]) -> None:
        """Say it if the phase is another one or nothing was said for long."""
        is_due = time.monotonic() - self._said_seconds > self._EVERY_SECONDS
        if assignment.phase == self._phase and not is_due:
            return
        self._phase, self._said_seconds = assignment.phase, time.monotonic()
        ratios = "  ".join(f"{name} {text}" for name, _, text in cache_ratios(state()))
        print(
            f"window {window.index}: phase {assignment.phase}"
            f"{' (new)' if assignment.is_new else ''}  {ratios}",
            file=self._stream,
            flush=True,
        )

    def idle(self, snapshot: Snapshot) -> None:
        """Say it if bursts have become impossible, or possible again; once if they wait for us."""
        if bool(snapshot.trouble) != self._is_in_trouble:
            self._is_in_trouble = bool(snapshot.trouble)
            text = f"no bursts: {snapshot.trouble}" if snapshot.trouble else "bursts again"
            print(text, file=self._stream, flush=True)
        if snapshot.overhead.waits_for_own_cpu and not self._has_waited:
            self._has_waited = True
            print(own_cpu_line(snapshot.overhead), file=self._stream, flush=True)


class JsonStatus:
    """One JSON object a window."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def window(self, window: Window, assignment: Assignment, state: Callable[[], Snapshot]) -> None:
        """Write the window."""
        snapshot = state()
        phase = _phase_of(snapshot)
        curve = phase.curves.get("lru") if phase is not None else None
        print(
            json.dumps(
                {
                    "window": window.index,
                    "start_seconds": window.start_seconds,
                    "cpu_seconds": window.cpu_seconds,
                    "phase": assignment.phase,
                    "is_new": assignment.is_new,
                    "distance": assignment.distance,
                    "predicted_phase": snapshot.predicted_phase,
                    "samples": window.samples,
                    "lost": window.lost,
                    "throttled": window.throttled,
                    "sampled_accesses": phase.sampled_accesses if phase is not None else 0,
                    "sizes_bytes": curve.sizes_bytes.tolist() if curve is not None else None,
                    "miss_ratio": curve.miss_ratio.tolist() if curve is not None else None,
                    "low": curve.low.tolist() if curve is not None else None,
                    "high": curve.high.tolist() if curve is not None else None,
                    "trouble": snapshot.trouble,
                    "spent_share": snapshot.overhead.spent_share,
                    "waits_for_own_cpu": snapshot.overhead.waits_for_own_cpu,
                }
            ),
            file=self._stream,
            flush=True,
        )

    def idle(self, snapshot: Snapshot) -> None:
        """Nothing to write."""
