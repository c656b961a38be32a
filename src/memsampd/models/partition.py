"""Who gets how much of a cache that is divided by ways."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Goal = Literal["misses", "fairness"]
"""A small sum of costs, or a small greatest cost."""


def lookahead(costs: NDArray[np.float64], goal: Goal, least_ways: int = 1) -> list[int]:
    """Return a division by lookahead (Qureshi and Patt, MICRO 2006).

    Each step goes from a corner of a cost's lower convex hull to the next: that of the program that
    gains most per way ("misses"), or of the one that is worst off ("fairness"). What is left when
    no step fits or helps goes to the programs in turn.

    Args:
        costs: of each program with 0, 1, ... w ways, shape (n, w + 1); that of 0 is not read.
        goal: what is to be small.
        least_ways: that each gets.

    Returns:
        Ways of each program; their sum is w.

    Raises:
        ValueError: there are too few ways for so many programs.
    """
    if not 0 < len(costs) * least_ways < costs.shape[1]:
        raise ValueError(
            f"{len(costs)} programs, {least_ways} ways each at least, {costs.shape[1] - 1} ways"
        )
    ways = [least_ways] * len(costs)
    left = costs.shape[1] - 1 - sum(ways)
    while left:
        steps = [_step(row, has, left) for row, has in zip(costs, ways, strict=True)]
        useful = [i for i, (gain, _) in enumerate(steps) if gain > 0]
        if not useful:
            break
        if goal == "misses":
            chosen = max(useful, key=lambda i: steps[i][0])
        else:
            chosen = max(useful, key=lambda i: costs[i, ways[i]])
        ways[chosen] += steps[chosen][1]
        left -= steps[chosen][1]
    for i in range(left):
        ways[i % len(ways)] += 1
    return ways


def _step(row: NDArray[np.float64], has: int, left: int) -> tuple[float, int]:
    """Return the greatest gain per way that more ways bring, and how many it takes."""
    gains = (row[has] - row[has + 1 : has + 1 + left]) / np.arange(1, left + 1)
    ways = int(gains.argmax()) + 1
    return float(gains[ways - 1]), ways
