"""Programs that do the same work again and again, and tell what each piece of it took.

usage: python -m targets.endless NAME

Each line on standard output is of one piece, some hundredths of a second of work: when it ended
(CLOCK_MONOTONIC), its CPU time and its wall time, in seconds.
"""

from __future__ import annotations

import json
import lzma
import random
import sqlite3
import sys
import time
from collections.abc import Callable

import numpy as np

_PIECE_SECONDS = 0.05


def compress() -> Callable[[], object]:
    """Compresses 200 kB of words with liblzma."""
    chosen = random.Random(1)
    words = [chosen.randbytes(chosen.randint(2, 8)) for _ in range(3000)]
    data = b"".join(chosen.choice(words) for _ in range(40_000))
    return lambda: lzma.compress(data, preset=6)


def query() -> Callable[[], object]:
    """Asks SQLite for a join, groups and an order of 60,000 rows in memory."""
    base, chosen = sqlite3.connect(":memory:"), random.Random(1)
    base.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY, region INTEGER)")
    base.execute("CREATE TABLE sale (customer INTEGER, amount REAL)")
    base.executemany("INSERT INTO customer VALUES (?, ?)", ((i, i % 17) for i in range(5000)))
    sales = ((chosen.randrange(5000), chosen.random()) for _ in range(60_000))
    base.executemany("INSERT INTO sale VALUES (?, ?)", sales)
    asked = (
        "SELECT region, sum(amount), count(*) FROM sale JOIN customer ON id = customer "
        "GROUP BY region ORDER BY 2"
    )
    return lambda: base.execute(asked).fetchall()


def gather() -> Callable[[], object]:
    """Reads 100 MB at random."""
    chosen = np.random.default_rng(1)
    area = chosen.random(13_000_000)
    at = chosen.integers(0, len(area), 400_000)
    return lambda: area.take(at).sum()


def interpret() -> Callable[[], object]:
    """Reads and sums up small objects in Python."""
    text = json.dumps([{"name": f"n{i}", "values": list(range(i % 30))} for i in range(300)])
    return lambda: sorted(sum(each["values"]) for each in json.loads(text))


WORK: dict[str, Callable[[], Callable[[], object]]] = {
    "compress": compress,
    "query": query,
    "gather": gather,
    "interpret": interpret,
}


def main() -> None:
    """Work until somebody ends it."""
    work = WORK[sys.argv[1]]()
    begin, times = time.process_time(), 0
    while time.process_time() < begin + _PIECE_SECONDS:
        work()
        times += 1
    while True:
        cpu_seconds, wall_seconds = time.process_time(), time.monotonic()
        for _ in range(times):
            work()
        now = time.monotonic()
        spent = time.process_time() - cpu_seconds
        print(f"{now:.6f} {spent:.6f} {now - wall_seconds:.6f}", flush=True)


if __name__ == "__main__":
    main()
