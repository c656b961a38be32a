"""Rewrites text: splitting, joining, replacing, regular expressions, sorting of lines."""

import random
import re

rng = random.Random(6)
names = [f"user{rng.randrange(9000)}" for _ in range(3000)]
lines = [f"{rng.randrange(10**6):07d} {rng.choice(names)} /p/{i % 977}" for i in range(250_000)]
pattern = re.compile(r"(\d+) (user\d*7)\b /p/(\d+)")
found = [match.groups() for line in lines if (match := pattern.match(line))]
text = "\n".join(sorted(lines, key=lambda line: line.split()[1]))
print(len(found), len(text.replace("user", "u").upper().split("\n")), hash(text) % 97)
