"""``memsampd attach`` of some installation: what it says while it runs, and what it used."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from targets.launching import LaunchError, Usage, launched

END_SECONDS = 30.0
# It is told by SIGINT. Where that comes after the end of the target, while memsampd finishes by
# itself, some versions end by the signal instead; what they had to say they have said.
_ENDED_AS_TOLD = (0, 128 + signal.SIGINT, -signal.SIGINT)
_SAMPLE = re.compile(r"^memsampd_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TAKEN = ("hold", "hit", "sampling", "taken_cpu")  # seconds of the target, by what took them
# How long to wait from one question to the next: each costs memsampd some 10 ms of CPU time.
_FIRST_POLL_SECONDS = 0.05
_POLL_GROWTH = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """What memsampd said at one moment.

    Attributes:
        seconds: since it was started.
        bands: least and greatest miss ratio of the whole run (LRU) by cache; those known.
        charged_share: what it says that it took from the target, as a share of its CPU time.
        target_cpu_seconds: CPU time of the target since it was attached, as it says.
        own_cpu_seconds: what it says that it used itself, copies included.
        bursts: taken so far.
        sampled_accesses: in them.
        errors: captures that failed, by reason.
    """

    seconds: float
    bands: dict[str, tuple[float, float]] = field(default_factory=dict)
    charged_share: float | None = None
    target_cpu_seconds: float = 0.0
    own_cpu_seconds: float = 0.0
    bursts: int = 0
    sampled_accesses: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def charged_seconds(self) -> float:
        """What it says that it took from the target."""
        return (self.charged_share or 0.0) * self.target_cpu_seconds

    def width(self, level: str) -> float | None:
        """Return the width of a band; None if it is not known."""
        band = self.bands.get(level)
        return None if band is None else band[1] - band[0]


def parse_answer(text: str, seconds: float = 0.0) -> Answer:
    """Read Prometheus metrics of one target. Names that a version lacks count as zero."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        samples.setdefault(name, []).append((dict(_LABEL.findall(labels)), float(value)))

    def total(name: str) -> float:
        return math.fsum(value for _, value in samples.get(name, ()))

    def curve(name: str) -> dict[str, float]:
        found = samples.get(name, ())
        return {at["size_bytes"]: value for at, value in found if at.get("policy") == "lru"}

    cpu_seconds = total("target_cpu_seconds_total")
    taken_seconds = math.fsum(total(f"target_{kind}_seconds_total") for kind in _TAKEN)
    low, high = curve("miss_low_ratio"), curve("miss_high_ratio")
    bands = {}
    for labels, size_bytes in samples.get("cache_size_bytes", ()):
        key = next((size for size in low if float(size) == size_bytes), None)
        if key is not None and key in high:
            bands[labels["level"]] = (low[key], high[key])
    return Answer(
        seconds,
        bands,
        taken_seconds / cpu_seconds if cpu_seconds > 0 else None,
        cpu_seconds,
        total("own_cpu_seconds_total"),
        int(total("bursts_total")),
        int(total("phase_sampled_accesses")),
        {labels["reason"]: int(n) for labels, n in samples.get("capture_errors_total", ())},
    )


def first_seconds(answers: list[Answer], widest: float = 0.5) -> float | None:
    """Return when there was a first number: a band at L1d that leaves at most ``widest`` open."""
    for answer in answers:
        width = answer.width("L1d")
        if width is not None and width <= widest:
            return answer.seconds
    return None


class Shares(NamedTuple):
    """Of the target's CPU time: what it charged, and its own CPU time; None if not known."""

    charged: float | None = None
    own: float | None = None


@dataclass(slots=True)
class Observation:
    """One run of memsampd.

    Attributes:
        answers: what it said, in time; complete after the observation.
        usage: what its processes used; None before its end.
        said: the end of what it told people.
    """

    answers: list[Answer] = field(default_factory=list)
    usage: Usage | None = None
    said: str = ""

    @property
    def last(self) -> Answer:
        """The last answer; an empty one if there was none."""
        return self.answers[-1] if self.answers else Answer(0.0)

    def shares_after(self, after_seconds: float = 10.0) -> Shares:
        """Return what it charged, and its CPU time, as shares of the target's CPU time.

        Without what was until its first answer after so many seconds, and as it says itself; all
        since the attach after 0. None if there is nothing else.
        """
        later = [answer for answer in self.answers if answer.seconds >= after_seconds]
        if not later:
            return Shares()
        first, last = later[0] if after_seconds else Answer(0.0), self.last
        used_seconds = last.target_cpu_seconds - first.target_cpu_seconds
        if used_seconds <= 0:
            return Shares()
        charged_seconds = last.charged_seconds - first.charged_seconds
        own_seconds = last.own_cpu_seconds - first.own_cpu_seconds
        return Shares(charged_seconds / used_seconds, own_seconds / used_seconds)


@contextmanager
def observing(
    memsampd: Path, pid: int, poll_seconds: float = 5.0, options: Sequence[str] = ()
) -> Iterator[Observation]:
    """Observe a process by an installation of memsampd while the body runs.

    Args:
        memsampd: its command.
        pid: the process to observe.
        poll_seconds: how often it is asked once there was a number.
        options: further ones of ``memsampd attach``.

    Raises:
        LaunchError: memsampd failed, or did not end.
    """
    observation, port, start = Observation(), free_port(), time.monotonic()
    command = (str(memsampd), "attach", str(pid), "--listen", f"127.0.0.1:{port}", *options)
    follower = _Follower(observation.answers, port, start, poll_seconds)
    with (
        tempfile.TemporaryFile() as told,
        launched(command, dict(os.environ), told) as process,
    ):
        follower.start()
        watchdog = threading.Timer(END_SECONDS, process.send, (signal.SIGKILL,))
        try:
            yield observation
            follower.stop()
            watchdog.start()
            process.send(signal.SIGINT)
            observation.usage = process.wait()
        finally:
            watchdog.cancel()
            follower.stop()
            told.seek(0)
            observation.said = told.read().decode(errors="replace")[-2000:]
        if observation.usage.status not in _ENDED_AS_TOLD:
            raise LaunchError(f"memsampd: {observation.usage.status}\n{observation.said}")


class _Follower(threading.Thread):
    """Asks often before the first number, now and then later, and once more at the end."""

    def __init__(self, answers: list[Answer], port: int, start: float, poll_seconds: float) -> None:
        super().__init__(daemon=True)
        self._answers, self._port, self._start = answers, port, start
        self._poll_seconds = poll_seconds
        self._over = threading.Event()

    def run(self) -> None:
        """Ask until it is over."""
        while not self._over.wait(self._pause()):
            self._ask()
        self._ask()

    def stop(self) -> None:
        """Ask for the last time; nothing if that was done."""
        self._over.set()
        self.join()

    def _pause(self) -> float:
        if first_seconds(self._answers) is not None:
            return self._poll_seconds
        passed = time.monotonic() - self._start
        return min(max(_FIRST_POLL_SECONDS, _POLL_GROWTH * passed), self._poll_seconds)

    def _ask(self) -> None:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/metrics", timeout=5
            ) as page:
                text = page.read().decode()
        except (OSError, HTTPException):
            return  # it does not listen yet, or no longer, or ended in the midst of an answer
        answer = parse_answer(text, time.monotonic() - self._start)
        if answer.target_cpu_seconds:
            self._answers.append(answer)


def free_port() -> int:
    """Return a port of the loopback device that nobody listens on.

    It is none that who connects is given: else a client might connect to itself.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
