"""Counts words, matches patterns, moves bodies. usage: work.py ROUNDS (0: endless)."""

import json
import re
import sys


class Body:
    """A point that moves."""

    def __init__(self, place: float) -> None:
        self.place = place
        self.speed = 0.0


def once(seed: int) -> int:
    """Do a piece of work; returns a checksum."""
    state = seed * 2 + 1
    counts: dict[str, int] = {}
    for _ in range(3000):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        word = f"w{(state >> 8) % 700:x}"
        counts[word] = counts.get(word, 0) + 1
    text = json.dumps([{"word": word, "count": count} for word, count in counts.items()])
    total = sum(item["count"] * len(item["word"]) for item in json.loads(text))
    total += sum(len(word) for word in re.findall(r"w[a-f]\w*", text))
    bodies = [Body(n * 1.5 + seed % 7) for n in range(20)]
    for _ in range(5):
        for body in bodies:
            for other in bodies:
                distance = other.place - body.place
                body.speed += distance / (distance * distance + 1.0) * 0.01
        for body in bodies:
            body.place += body.speed
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return int(total + int(bodies[3].place * 1000)) + sum(i * n for i, (_, n) in enumerate(ranked))


def main() -> None:
    """Work for so many rounds."""
    rounds = int(sys.argv[1])
    total = done = 0
    while rounds == 0 or done < rounds:
        total = (total * 31 + once(done % 1000)) % 1_000_000_007
        done += 1
    print(total)


main()
