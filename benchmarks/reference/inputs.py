"""Generates the inputs of the reference programs: every byte follows from a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

SEED = 20240501
MIB = 1 << 20


def write_corpus(path: Path, size_bytes: int) -> None:
    """Write text, records, tables of numbers and incompressible bytes by turns, 1 MiB each."""
    rng = random.Random(SEED)
    vocabulary = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(20_000)]
    parts: list[Callable[[], bytes]] = [
        lambda: _text(rng, vocabulary),
        lambda: _records(rng, vocabulary),
        lambda: _numbers(rng),
        lambda: _text(rng, vocabulary),
        lambda: rng.randbytes(MIB // 4),
    ]
    with path.open("wb") as file:
        written = 0
        while written < size_bytes:
            part = parts[rng.randrange(len(parts))]()[: size_bytes - written]
            file.write(part)
            written += len(part)


def _text(rng: random.Random, vocabulary: list[str]) -> bytes:
    words = [vocabulary[int(len(vocabulary) * rng.random() ** 4)] for _ in range(170_000)]
    return " ".join(words).encode()[:MIB]


def _records(rng: random.Random, vocabulary: list[str]) -> bytes:
    lines = (
        f'{{"id": {i}, "user": "{rng.choice(vocabulary)}", "score": {rng.random():.6f}}}\n'
        for i in range(rng.randrange(10**6), 10**7)
    )
    text = bytearray()
    while len(text) < MIB:
        text += next(lines).encode()
    return bytes(text[:MIB])


def _numbers(rng: random.Random) -> bytes:
    value = rng.randrange(1 << 20)
    values = []
    for _ in range(MIB // 4):
        value += rng.randrange(-40, 41)
        values.append(value & 0xFFFFFFFF)
    return struct.pack(f"<{len(values)}I", *values)


def write_picture(path: Path, width: int, height: int) -> None:
    """Write a picture (PPM, 8 bits a colour): gradients, discs with edges, noise in places."""
    rng = np.random.default_rng(SEED)
    y, x = np.mgrid[0:height, 0:width]
    picture = np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], 2)
    for _ in range(60):
        radius = int(rng.integers(10, height // 4))
        disc = (x - rng.integers(width)) ** 2 + (y - rng.integers(height)) ** 2 < radius**2
        picture[disc] = (picture[disc] + rng.integers(0, 256, 3)) // 2
    noisy = (x // 97 + y // 61) % 3 == 0
    picture[noisy] += rng.integers(-20, 21, (int(noisy.sum()), 3))
    header = f"P6 {width} {height} 255\n".encode()
    path.write_bytes(header + np.clip(picture, 0, 255).astype(np.uint8).tobytes())


def write_c_source(path: Path, functions: int) -> None:
    """Write a preprocessed C file of so many functions: arithmetic, loops, switches, tables."""
    rng = random.Random(SEED)
    with path.open("w", encoding="ascii") as file:
        file.write("typedef struct node { struct node *next; int key; long value; } node;\n")
        for index in range(functions):
            file.write(_c_function(rng, index))


def _c_function(rng: random.Random, index: int) -> str:
    body = [f"long f{index}(node *list, int n, long *data) {{", "  long x = n, y = 1, z = 0;"]
    for _ in range(rng.randint(3, 8)):
        body += rng.choice([_c_loop, _c_switch, _c_walk, _c_arithmetic])(rng, index)
    return "\n".join([*body, "  return x ^ (y + z);", "}", ""])


def _c_expression(rng: random.Random, depth: int = 3) -> str:
    if depth == 0:
        return rng.choice(["x", "y", "z", "n", str(rng.randint(1, 999))])
    left, right = _c_expression(rng, depth - 1), _c_expression(rng, depth - 1)
    return f"({left} {rng.choice(['+', '-', '*', '^', '&', '|'])} {right})"


def _c_arithmetic(rng: random.Random, index: int) -> list[str]:
    return [f"  {name} = {_c_expression(rng, 4)};" for name in rng.sample("xyz", 3)]


def _c_loop(rng: random.Random, index: int) -> list[str]:
    return [
        f"  for (int i = 0; i < n + {rng.randint(0, 9)}; i++) {{",
        f"    data[i] = data[i] * {rng.randint(2, 99)} + {_c_expression(rng)};",
        f"    if (data[i] > {_c_expression(rng)}) x += data[i]; else y -= i;",
        "  }",
    ]


def _c_switch(rng: random.Random, index: int) -> list[str]:
    cases = [
        f"    case {k}: z += {_c_expression(rng, 2)}; break;" for k in range(rng.randint(3, 9))
    ]
    return ["  switch (x & 15) {", *cases, "    default: y++;", "  }"]


def _c_walk(rng: random.Random, index: int) -> list[str]:
    call = f"f{rng.randrange(index)}(p, n - 1, data)" if index else "1"
    return [
        "  for (node *p = list; p; p = p->next)",
        f"    if (p->key == {_c_expression(rng, 2)}) z += {call}; else x += p->value;",
    ]
