"""Counts words in a big dictionary: hashes, strings, a working set that grows."""

import random

rng = random.Random(3)
counts: dict[str, int] = {}
for _ in range(1_100_000):
    word = f"{rng.getrandbits(17):x}"
    counts[word] = counts.get(word, 0) + 1
print(len(counts), max(counts.values()), len(sorted(counts)))
