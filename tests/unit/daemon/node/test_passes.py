"""How long the longest pass of a loop took lately."""

from __future__ import annotations

import random

from memsampd.daemon.node.passes import LongestPass


def test_the_longest_of_the_last_minute_is_told() -> None:
    longest, passes = LongestPass(), list[tuple[float, float]]()
    assert longest.seconds == 0.0
    generator, now = random.Random(7), 0.0
    for _ in range(2000):
        now += generator.choice((0.25, 1.0, 50.0) if generator.random() < 0.1 else (0.25,))
        passes.append((now, generator.expovariate(100.0)))
        longest.note(*passes[-1])
        assert longest.seconds == max(took for ended, took in passes if ended >= now - 60.0)
