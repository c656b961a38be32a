"""A pure-Python program of three parts: bodies in gravity, JSON documents, words in a dictionary.

usage: workload.py BODIES_STEPS DOCUMENTS WORDS
"""

import json
import random
import sys

Body = list[float]


def advance(bodies: list[Body], steps: int) -> float:
    """Move the bodies by symplectic steps; returns a checksum."""
    for _ in range(steps):
        for i, a in enumerate(bodies):
            for b in bodies[i + 1 :]:
                dx, dy, dz = a[0] - b[0], a[1] - b[1], a[2] - b[2]
                pull = 0.001 / (dx * dx + dy * dy + dz * dz + 0.01) ** 1.5
                a[3] -= dx * b[6] * pull
                a[4] -= dy * b[6] * pull
                a[5] -= dz * b[6] * pull
                b[3] += dx * a[6] * pull
                b[4] += dy * a[6] * pull
                b[5] += dz * a[6] * pull
        for body in bodies:
            for axis in range(3):
                body[axis] += 0.001 * body[axis + 3]
    return sum(map(sum, bodies))


def documents(count: int, rng: random.Random) -> int:
    """Write and read back documents; returns the length of the text."""
    kept = [
        {"id": i, "tags": [f"t{rng.randrange(500)}" for _ in range(6)], "x": [rng.random()] * 4}
        for i in range(2000)
    ]
    length = 0
    for start in range(0, count, len(kept)):
        text = json.dumps(kept)
        for document in json.loads(text):
            document["id"] += start
        length += len(text)
    return length


def words(count: int, rng: random.Random) -> int:
    """Count words of a skewed distribution; returns the number of distinct ones."""
    counts: dict[str, int] = {}
    for _ in range(count):
        word = f"w{int(rng.paretovariate(0.35)) % 100_003:x}"
        counts[word] = counts.get(word, 0) + 1
    return len(sorted(counts, key=lambda word: (-counts[word], word)))


def main() -> None:
    """Run the three parts."""
    steps, document_count, word_count = map(int, sys.argv[1:])
    rng = random.Random(1)
    bodies = [[rng.random() for _ in range(7)] for _ in range(5)]
    print(advance(bodies, steps), documents(document_count, rng), words(word_count, rng))


main()
