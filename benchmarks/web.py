"""What serving costs: the time of a scrape, of the page's requests, of a publish, and memory.

usage: python benchmarks/web.py [--quick] [--json FILE]

A real web process is told invented targets, one snapshot of each a second as sessions tell them,
and asked meanwhile. "scrape" is /metrics of at least 5,000 series, at once after the snapshots,
its text made anew; "windows" a day of a target in 600 points, as a wide page asks for; "publish"
what a session waits for. The lower quartile of all requests, as what else runs on the machine only
adds, and the greatest. Goals: a scrape takes at most 100 ms, a publish at most 1 ms. Exit status 1
if one is missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from verdict import add_options, finish

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from invented import make_snapshot

from memsampd.exporters.snapshot import Snapshot, TargetInfo
from memsampd.web.application import METRICS_SECONDS
from memsampd.web.process import WebProcess

TARGETS = 20
SERIES = 5000
GOAL_SCRAPE_MS = 100.0
GOAL_PUBLISH_MS = 1.0
DAY_SECONDS = 86_400
HISTORY_STEP_SECONDS = 60
WINDOWS = "/api/v1/targets/1000-99/windows?points=600"
_START_SECONDS = 60.0


class Invented:
    """Targets that change their phases, each with its CPU time so far."""

    def __init__(self, targets: int, phases: int) -> None:
        self._base = make_snapshot(phases)
        self._used = [[0.0] * phases for _ in range(targets)]

    def snapshot(self, target: int, time_seconds: float, step_seconds: float) -> Snapshot:
        """The next one of a target."""
        used = self._used[target]
        phase = int(time_seconds / 7 + target) % len(used)
        used[phase] += 0.9 * step_seconds
        estimate = self._base.estimate
        phases = tuple(replace(each, cpu_seconds=used[each.id]) for each in estimate.phases)
        return replace(
            self._base,
            target=TargetInfo(1000 + target, 99, f"program{target}", "/usr/bin/program"),
            time_seconds=time_seconds,
            phase=phase,
            estimate=replace(estimate, phases=phases, cpu_seconds=sum(used)),
        )


class Client:
    """Asks over one connection, as a scraper does."""

    def __init__(self, web: WebProcess) -> None:
        self._connection = http.client.HTTPConnection(web.host, web.port, timeout=60)

    def get(self, path: str) -> bytes:
        """Return what is there."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"{path}: status {answer.status}")
        return body

    def await_targets(self, targets: int) -> None:
        """Wait until all are known."""
        until = time.monotonic() + _START_SECONDS
        while len(json.loads(self.get("/api/v1/targets"))["targets"]) < targets:
            if time.monotonic() > until:
                raise RuntimeError(f"{targets} targets are not known after {_START_SECONDS:g} s")
            time.sleep(0.1)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def timed_ms(do: Callable[[], object]) -> float:
    """Milliseconds that it takes."""
    started = time.perf_counter()
    do()
    return 1e3 * (time.perf_counter() - started)


def fill_history(web: WebProcess, invented: Invented, targets: int) -> None:
    """Tell a day that ends now, at a pace at which nothing is dropped."""
    now_seconds = time.monotonic()
    for back_seconds in range(DAY_SECONDS, 0, -HISTORY_STEP_SECONDS):
        for target in range(targets):
            web.publish(invented.snapshot(target, now_seconds - back_seconds, HISTORY_STEP_SECONDS))
        time.sleep(0.002 * targets)


def resident_mib(pid: int | None) -> float:
    """Resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no memory")


def measure(rounds: int) -> dict[str, object]:
    """All figures."""
    invented = Invented(TARGETS, 3)
    times: dict[str, list[float]] = {"scrape": [], "windows": [], "targets": [], "publish": []}
    web = WebProcess("127.0.0.1:0")
    try:
        client = Client(web)
        fill_history(web, invented, 2)
        for _ in range(rounds):
            for target in range(TARGETS):
                snapshot = invented.snapshot(target, time.monotonic(), 1.0)
                times["publish"].append(timed_ms(partial(web.publish, snapshot)))
            if not times["scrape"]:
                client.await_targets(TARGETS)
            # At once after the snapshots: the server has to take them in, too.
            scraped = b""

            def scrape() -> None:
                nonlocal scraped
                scraped = client.get("/metrics")

            times["scrape"].append(timed_ms(scrape))
            times["windows"].append(timed_ms(lambda: client.get(WINDOWS)))
            times["targets"].append(timed_ms(lambda: client.get("/api/v1/targets")))
            time.sleep(METRICS_SECONDS)  # from then on the text is made again
        series = sum(not line.startswith(b"#") for line in scraped.splitlines())
        memory_mib = resident_mib(web.pid)
        client.close()
    finally:
        web.close()
    summary = {
        name: {"quartile_ms": statistics.quantiles(found)[0], "greatest_ms": max(found)}
        for name, found in times.items()
    }
    return {"series": series, "targets": TARGETS, "resident_mib": memory_mib, "times": summary}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "fewer rounds")
    args = parser.parse_args(words)
    figures = measure(8 if args.quick else 40)
    times = figures["times"]
    assert isinstance(times, dict)
    print(
        f"{figures['targets']} targets, {figures['series']:,} series, "
        f"{figures['resident_mib']:.0f} MiB resident"
    )
    for name, found in times.items():
        print(
            f"{name:8} quartile {found['quartile_ms']:8.3f} ms,"
            f" greatest {found['greatest_ms']:8.3f}"
        )
    series = figures["series"]
    assert isinstance(series, int)
    missed = []
    if series < SERIES:
        missed.append(f"only {series} series")
    if times["scrape"]["quartile_ms"] > GOAL_SCRAPE_MS:
        missed.append(f"a scrape takes more than {GOAL_SCRAPE_MS:g} ms")
    if times["publish"]["quartile_ms"] > GOAL_PUBLISH_MS:
        missed.append(f"a publish takes more than {GOAL_PUBLISH_MS:g} ms")
    return finish(args.json, figures, missed)


if __name__ == "__main__":
    sys.exit(main())
