"""Builds a search tree of objects and looks keys up in it: pointers, attributes, the heap."""

from __future__ import annotations

import random


class Node:
    """One key and what is smaller and greater."""

    __slots__ = ("greater", "key", "smaller")

    def __init__(self, key: int) -> None:
        self.key = key
        self.smaller: Node | None = None
        self.greater: Node | None = None


def insert(root: Node, key: int) -> int:
    """Put a key below the root; returns how far below."""
    depth, at = 0, root
    while at.key != key:
        below = at.smaller if key < at.key else at.greater
        depth += 1
        if below is None:
            if key < at.key:
                at.smaller = Node(key)
            else:
                at.greater = Node(key)
            return depth
        at = below
    return depth


rng = random.Random(5)
tree = Node(1 << 29)
print(sum(insert(tree, rng.getrandbits(30)) for _ in range(260_000)))
