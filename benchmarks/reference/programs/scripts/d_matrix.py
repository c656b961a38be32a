"""Multiplies matrices that are lists of lists: loops over floats."""

import random

SIZE = 110

rng = random.Random(4)
left = [[rng.random() for _ in range(SIZE)] for _ in range(SIZE)]
right = [[rng.random() for _ in range(SIZE)] for _ in range(SIZE)]
for _ in range(11):
    columns = list(zip(*right, strict=True))
    left = [
        [sum(a * b for a, b in zip(row, column, strict=True)) / SIZE for column in columns]
        for row in left
    ]
print(sum(map(sum, left)))
