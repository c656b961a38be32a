"""What a session looks like while it runs: a live block on a terminal, lines, or JSON."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from memsampd.estimate.records import PhaseEstimate
from memsampd.exporters.curves import CurvePoint, at_size
from memsampd.exporters.documents import (
    OF_CHILDREN,
    WORTH_SAYING,
    is_idle,
    phase_of_id,
    present_phase,
    window_document,
)
from memsampd.exporters.snapshot import Overhead, Snapshot
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import format_size
from memsampd.names import age_words, printable
from memsampd.phases.records import Assignment, Window

if TYPE_CHECKING:
    from memsampd.daemon.session_parts import State

_REDRAW_SECONDS = 0.5
_BARS = "▁▂▃▄▅▆▇█"
_SPARK_LIMIT_BYTES = 64 << 20


def ratio_text(point: CurvePoint) -> str:
    """A miss ratio in per cent: as its band where that matters, else as one figure."""
    digits = 2 if point.miss_ratio < 0.01 else 1
    if point.is_uncertain:
        return f"{100 * point.low:.{digits}f}..{100 * point.high:.{digits}f} %"
    return f"{100 * point.miss_ratio:.{digits}f} %"


def cache_ratios(curve: MissRatioCurve | None, cache_sizes_bytes: Mapping[str, int]) -> str:
    """Miss ratios at each of this machine's caches."""
    found = []
    for name, size_bytes in cache_sizes_bytes.items():
        point = at_size(curve, size_bytes) if curve is not None else None
        text = "?" if point is None else ratio_text(point)
        found.append(f"{name} {format_size(size_bytes)}: {text}")
    return "  ".join(found)


def spark(curve: MissRatioCurve | None) -> str:
    """A curve from 1 KiB to 64 MiB, one character a size; empty if there is none."""
    if curve is None:
        return ""
    return "".join(
        _BARS[min(int(ratio * len(_BARS)), len(_BARS) - 1)]
        for size_bytes, ratio in zip(curve.sizes_bytes, curve.miss_ratio, strict=True)
        if size_bytes <= _SPARK_LIMIT_BYTES
    )


def status_lines(snapshot: Snapshot) -> list[str]:
    """The live block, and the summary: the whole run, then the present phase, then costs."""
    estimate, overhead = snapshot.estimate, snapshot.overhead
    whole = estimate.curves.get("lru")
    sampled = sum(phase.sampled_accesses for phase in estimate.phases)
    lines = [
        f"{snapshot.target.command} ({snapshot.target.pid})  CPU time "
        f"{overhead.target_cpu_seconds:.1f} s, of it user {estimate.cpu_seconds:.1f} s"
        f"  windows {estimate.windows}  phases {len(estimate.phases)}"
        f"  bursts {sum(snapshot.burst_ends.values())}",
        f"LRU miss ratio, whole run:  {cache_ratios(whole, snapshot.cache_sizes_bytes)}"
        + _without_curve(snapshot),
        f"{_phase_words(snapshot)}  "
        + cache_ratios(_curve_of(present_phase(snapshot)), snapshot.cache_sizes_bytes),
        f"1 KiB {spark(whole) or _no_curve(snapshot)} 64 MiB, whole run, from {sampled:,} accesses",
        _cost_line(snapshot),
        own_cpu_line(overhead),
    ]
    if overhead.sampling_why:
        lines.append(
            f"sampled for {100 * overhead.sampled_share:.2g} % of the time: {overhead.sampling_why}"
        )
    if snapshot.tally.cut_short:
        lines.append(
            f"{snapshot.tally.cut_short} bursts had a call of the target return before all was "
            "transferred, as a signal would: the program goes on with the rest"
        )
    if snapshot.child_share >= WORTH_SAYING:
        share = f"{100 * snapshot.child_share:.0f} %"
        lines.append(f"child processes used {share} of the CPU time: {OF_CHILDREN}")
    lines += stored_lines(snapshot)
    lines += snapshot.refused()
    if is_idle(snapshot):
        lines.append(idle_line(snapshot))
    if snapshot.trouble:
        lines.append(f"no bursts: {snapshot.trouble}")
    return lines


def _no_curve(snapshot: Snapshot) -> str:
    is_memoryless = snapshot.estimate.rate.accesses_per_cpu_second == 0
    return "(no accesses)" if is_memoryless else "(no burst yet)"


def _without_curve(snapshot: Snapshot) -> str:
    estimate = snapshot.estimate
    share = estimate.unknown_cpu_seconds / estimate.cpu_seconds if estimate.cpu_seconds else 0.0
    return f"  ({100 * share:.0f} % of the time without a curve)" if share >= 0.005 else ""


def _curve_of(phase: PhaseEstimate | None) -> MissRatioCurve | None:
    return None if phase is None else phase.curves.get("lru")


def _phase_words(snapshot: Snapshot) -> str:
    if snapshot.phase is None:
        return "now: no window yet,"
    accuracy = snapshot.prediction_accuracy
    predicted = "" if accuracy is None else f" (predicted {100 * accuracy:.0f} %)"
    return f"now, phase {snapshot.phase}{predicted}:"


def _cost_line(snapshot: Snapshot) -> str:
    overhead = snapshot.overhead
    sampling = 100 * overhead.sampling_seconds / max(overhead.target_cpu_seconds, 1e-9)
    is_early = overhead.spent_share > overhead.budget_share  # see daemon/ledger.py
    taken_ms = 1e3 * overhead.taken_cpu_seconds
    taken = f" own CPU time took {taken_ms:.0f} ms of busy CPUs from it," if taken_ms else ""
    granted = "; first bursts are granted at once" if is_early else ""
    return (
        f"cost {100 * overhead.spent_share:.2f} % of the target's CPU time (budget "
        f"{100 * overhead.budget_share:g} %{granted}), held {1e3 * overhead.stop_seconds:.1f} ms,"
        f" at most {1e3 * overhead.longest_stop_seconds:.1f} at once,{taken} "
        f"sampling {sampling:.2f} %; samples {snapshot.samples:,}, lost {snapshot.lost}"
    )


def own_cpu_line(overhead: Overhead) -> str:
    """What memsampd's processes used, and whether bursts wait for that."""
    granted = f"{overhead.own_cpu_granted_seconds:.2g} s in any case"
    limit = f"limit {100 * overhead.own_cpu_share:g} % of the target's, {granted}"
    line = f"own CPU {overhead.own_cpu_seconds:.2f} s ({limit})"
    if overhead.waits_for_own_cpu:
        return f"{line}: bursts wait for it, so far {overhead.own_cpu_waited_seconds:.1f} s"
    if overhead.own_cpu_waited_seconds > 0:
        return f"{line}: bursts waited {overhead.own_cpu_waited_seconds:.1f} s for it"
    return line


def stored_lines(snapshot: Snapshot) -> list[str]:
    """What is known from the store, and what of it did not hold."""
    known = [phase for phase in snapshot.estimate.phases if phase.stored_age_seconds is not None]
    lines = []
    if known:
        words = (
            f"phase {phase.id}: {phase.stored_bursts} bursts, "
            f"{age_words(phase.stored_age_seconds or 0.0)} old"
            for phase in known
        )
        lines.append(f"known from the store: {'; '.join(words)}")
    if snapshot.store_drops:
        lines.append(
            f"{snapshot.store_drops} times a phase did otherwise than what was stored of it: that "
            "was dropped"
        )
    return lines


def idle_line(snapshot: Snapshot) -> str:
    """For how long the target has done nothing."""
    return f"idle: the target has used no CPU time for {snapshot.idle_seconds:.0f} s"


_SPINNER = "|/-\\"


def waiting_line(snapshot: Snapshot) -> str:
    """What the first curve waits for; empty once it is there."""
    estimate, overhead = snapshot.estimate, snapshot.overhead
    if estimate.curves or not snapshot.alive:
        return ""
    if snapshot.child_share == 1.0:
        return "step 1 of 3: waiting for the process itself to run: its children have no bursts"
    if is_idle(snapshot) or not snapshot.samples:
        return "step 1 of 3: waiting for the target to use CPU time"
    if not estimate.windows:
        return (
            f"step 2 of 3: {snapshot.samples} samples, waiting for a window to end "
            f"({overhead.target_cpu_seconds:.2f} s of CPU time)"
        )
    tried = sum(snapshot.burst_ends.values()) + sum(snapshot.errors.values())
    reason = snapshot.trouble or ("own CPU time" if overhead.waits_for_own_cpu else "its code")
    after = f"{tried} tried, waits for {reason}" if tried else "the first is being taken"
    return f"step 3 of 3: {estimate.windows} windows, waiting for a burst; {after}"


def wrapped(line: str, columns: int) -> list[str]:
    """Break a line that does not fit, between its parts (two blanks apart) if they are short."""
    parts = (
        part.replace(" ", "\0") if len(part) <= columns // 2 else part for part in line.split("  ")
    )
    broken = textwrap.wrap(
        "  ".join(parts), columns, subsequent_indent="    ", break_on_hyphens=False
    )
    return [each.replace("\0", " ") for each in broken]


class Display:
    """Writes to a stream, at once.

    Attributes:
        stream: where to.
        failure: why it could not be written; None as long as it can.
        at_no_reader: called if that is because the reader of a pipe has gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failure: OSError | None = None
        self.at_no_reader: Callable[[], None] = lambda: None

    def window(self, window: Window, assignment: Assignment, state: State) -> None:
        """Nothing by itself: the turn shows it."""

    def turn(self, state: State) -> None:
        """Nothing by itself: the window shows it."""

    def _write(self, text: str) -> None:
        """Write it.

        Raises:
            OSError: it cannot be written; the error names the stream.
        """
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError as error:
            self.failure = error
            error.filename = self.stream.name
            if isinstance(error, BrokenPipeError):
                self.at_no_reader()
            if self.stream not in (sys.stdout, sys.stderr):
                with suppress(OSError):  # now: what is still buffered would fail again
                    self.stream.close()
            raise


class LiveStatus(Display):
    """Redraws a block of lines in place; until there is a curve, what that waits for."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._started_seconds = time.monotonic()
        self._drawings = 0
        self._height = 0
        self._drawn_seconds = 0.0

    def turn(self, state: State) -> None:
        """Show the state, at most some times a second."""
        if time.monotonic() - self._drawn_seconds >= _REDRAW_SECONDS:
            self._drawn_seconds = time.monotonic()
            self._draw(state())

    def _draw(self, snapshot: Snapshot) -> None:
        try:
            columns, rows = os.get_terminal_size(self.stream.fileno())
        except OSError:
            columns, rows = 0, 0
        told = [*self._progress(snapshot), *status_lines(snapshot)]
        lines = [part for line in told for part in wrapped(printable(line), (columns or 80) - 1)]
        lines = lines[: (rows or 24) - 1]  # what scrolls away cannot be redrawn
        # A block that has become shorter leaves empty lines.
        lines += [""] * (self._height - len(lines))
        back = f"\x1b[{self._height}F" if self._height else ""
        self._write(back + "".join(f"\x1b[2K{line}\n" for line in lines))
        self._height = len(lines)

    def _progress(self, snapshot: Snapshot) -> list[str]:
        """What is waited for, with something that moves."""
        waiting = waiting_line(snapshot)
        if not waiting:
            return []
        self._drawings += 1
        seconds = time.monotonic() - self._started_seconds
        return [f"{_SPINNER[self._drawings % len(_SPINNER)]} {seconds:.0f} s, {waiting}"]


class PlainStatus(Display):
    """A line a change of phase, one when its curve is known, and one now and then.

    One in two seconds at most, but for the first window of a new phase.
    """

    _EVERY_SECONDS = 5.0
    _LOOK_SECONDS = 2.0
    _ASK_SECONDS = 0.25  # for the very first curve

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._phase: int | None = None
        self._has_curve = False
        self._curves = 0
        self._said_seconds = 0.0
        self._looked_seconds = 0.0
        self._asked_seconds = 0.0
        self._said: set[str] = set()

    def window(self, window: Window, assignment: Assignment, state: State) -> None:
        """Say it if the phase is another one, its curve is there, or nothing was said for long."""
        now = time.monotonic()
        is_due = now - self._said_seconds > self._EVERY_SECONDS
        is_other = assignment.phase != self._phase
        pause = self._LOOK_SECONDS if self._curves else self._ASK_SECONDS
        may_ask = now - self._asked_seconds >= pause and (is_other or not self._has_curve)
        if not is_due and not may_ask and not assignment.is_new:
            return
        self._asked_seconds = now
        snapshot = state(only=(assignment.phase,))
        self._look(snapshot)
        curve = _curve_of(phase_of_id(snapshot, assignment.phase))
        if not is_other and not is_due and curve is None:
            return
        self._phase, self._said_seconds = assignment.phase, now
        self._has_curve = curve is not None
        self._curves += self._has_curve
        self._say(
            f"window {window.index}: phase {assignment.phase}"
            f"{' (new)' if assignment.is_new else ''}  "
            + (
                cache_ratios(curve, snapshot.cache_sizes_bytes)
                if curve is not None
                else "no burst of it yet"
            )
        )

    def turn(self, state: State) -> None:
        """Say when the target is idle, or bursts are impossible or wait for us; and when not."""
        if time.monotonic() - self._looked_seconds >= self._LOOK_SECONDS:
            self._look(state(only=()))

    def _look(self, snapshot: Snapshot) -> None:
        """Each state that is asked for tells all that is to be said."""
        self._looked_seconds = time.monotonic()
        self._tell("idle", is_idle(snapshot), idle_line(snapshot), "the target runs again")
        self._tell(
            "trouble", bool(snapshot.trouble), f"no bursts: {snapshot.trouble}", "bursts again"
        )
        if snapshot.overhead.waits_for_own_cpu:  # it comes and goes: once is enough
            self._tell("own CPU", True, own_cpu_line(snapshot.overhead), "")

    def _tell(self, name: str, holds: bool, text: str, over: str) -> None:
        """Say once that something holds, and once that it is over."""
        if holds == (name in self._said):
            return
        self._said ^= {name}
        self._say(text if holds else over)

    def _say(self, text: str) -> None:
        self._write(f"{printable(text)}\n")


class JsonStatus(Display):
    """One JSON object a window."""

    def window(self, window: Window, assignment: Assignment, state: State) -> None:
        """Write the window."""
        import json

        told = window_document(state(), window, assignment)
        self._write(f"{json.dumps(told)}\n")
