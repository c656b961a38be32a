"""What a Prometheus would have stored of a run: memsampd's counters, scraped while it observes."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from reference.windows import ERROR_SIZES_BYTES

SCRAPE_SECONDS = 1.0
TIMEOUT_SECONDS = 2.0

ACCESSES = "memsampd_accesses_total"
MISSES = "memsampd_misses_total"
CPU = "memsampd_target_cpu_seconds_total"
UNKNOWN_CPU = "memsampd_unknown_cpu_ratio"


@dataclass(frozen=True, slots=True)
class Scrape:
    """The counters at one moment, summed over the target's names (an exec changes them).

    Attributes:
        seconds: since the program began.
        accesses: estimated so far.
        misses: estimated so far at ``ERROR_SIZES_BYTES``, LRU, shape (s,).
        cpu_seconds: of the target.
        unknown_cpu_share: of this time, in code of which there is no curve, 0..1.
    """

    seconds: float
    accesses: float
    misses: NDArray[np.float64]
    cpu_seconds: float
    unknown_cpu_share: float

    @property
    def has_curve(self) -> bool:
        """Whether anything was estimated yet."""
        return self.accesses > 0


def parse_scrape(text: str, seconds: float, policy: str = "lru") -> Scrape:
    """Read what ``/metrics`` said.

    Args:
        text: the page.
        seconds: when it was read, since the program began.
        policy: whose misses are wanted.
    """
    sums = dict.fromkeys((ACCESSES, CPU), 0.0)
    unknown_cpu_share = 1.0
    misses = np.zeros(len(ERROR_SIZES_BYTES))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
            elif sample.name == UNKNOWN_CPU:
                unknown_cpu_share = sample.value
            elif sample.name == MISSES and sample.labels["policy"] == policy:
                size_bytes = int(sample.labels["size_bytes"])
                if size_bytes in ERROR_SIZES_BYTES:
                    misses[ERROR_SIZES_BYTES.index(size_bytes)] += sample.value
    return Scrape(seconds, sums[ACCESSES], misses, sums[CPU], unknown_cpu_share)


class Scraper:
    """Reads ``/metrics`` in a thread of its own, for as long as its context lasts.

    A Prometheus reads once a second. More often would be no better: each answer costs memsampd CPU
    time that bursts then lack.

    Args:
        address: host and port.
        spacing_seconds: between two scrapes.
    """

    def __init__(self, address: str, spacing_seconds: float = SCRAPE_SECONDS) -> None:
        self._spacing_seconds = spacing_seconds
        self._url = f"http://{address}/metrics"
        self._pages: list[tuple[float, str]] = []
        self._done = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[Scraper]:
        """Scrape until the context ends."""
        thread = threading.Thread(target=self._run, name="scraper")
        thread.start()
        try:
            yield self
        finally:
            self._done.set()
            thread.join()

    def scrapes(self, start: float) -> list[Scrape]:
        """Return what was read of a target.

        Args:
            start: when the program began, by ``time.monotonic``.
        """
        return [
            parse_scrape(text, moment - start)
            for moment, text in sorted(self._pages)
            if f"{CPU}{{" in text
        ]

    def scrape(self) -> None:
        """Read once, if anybody answers."""
        with (
            # It does not listen yet, or no more, or ends as it answers.
            contextlib.suppress(OSError, http.client.HTTPException),
            urllib.request.urlopen(self._url, timeout=TIMEOUT_SECONDS) as answer,
        ):
            text = answer.read().decode()
            self._pages.append((time.monotonic(), text))

    def _run(self) -> None:
        while not self._done.wait(self._spacing_seconds):
            self.scrape()


def write_scrapes(path: Path, scrapes: Sequence[Scrape]) -> None:
    """Keep scrapes as JSON."""
    rows = [
        {
            "seconds": each.seconds,
            "accesses": each.accesses,
            "misses": each.misses.tolist(),
            "cpu_seconds": each.cpu_seconds,
            "unknown_cpu_share": each.unknown_cpu_share,
        }
        for each in scrapes
    ]
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def read_scrapes(path: Path) -> list[Scrape]:
    """Read what :func:`write_scrapes` kept."""
    return [
        Scrape(**{**row, "misses": np.array(row["misses"], dtype=float)})
        for row in json.loads(path.read_text(encoding="utf-8"))
    ]
