"""Multiplies, transforms, sorts and gathers numpy arrays. usage: arrays.py ROUNDS (0: endless)."""

import sys

import numpy as np


def main() -> None:
    """Work for so many rounds."""
    rounds = int(sys.argv[1])
    draw = np.random.default_rng(1)
    matrix = draw.random((300, 300))
    signal = draw.random(1 << 14)
    keys = draw.permutation(1 << 17)
    total, done = 0.0, 0
    while rounds == 0 or done < rounds:
        product = matrix @ matrix.T
        spectrum = np.abs(np.fft.rfft(signal * (done % 7 + 1)))
        chosen = keys[keys[keys[: 1 << 16]]]
        total = total / 2 + product[done % 300, 7] + spectrum[done % 100]
        total += float(np.sort(chosen)[:: done % 97 + 1].sum() % 1009) + np.exp(-signal).sum()
        done += 1
    print(float(total).hex())


main()
