"""Lines that a burst left open: touched in it, and not again before it ended."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import numpy as np
from numpy.typing import NDArray

VISIT_ACCESSES = 4096
"""Touches of a line less than this apart are one visit to it."""
_WORD_BITS = 3
# Of a line that was touched in so much of its words one is enough: whoever comes next will touch
# that, too. Of others half are watched.
_NEARLY_ALL = 0.75


class OpenLine(msgspec.Struct, frozen=True):
    """A line that a burst left open, as words to be watched.

    Attributes:
        words: addresses of aligned words of 8 bytes: one that its last visit touched if that
            touched nearly all of them; else half of the line, those touched before others.
        touched: how many different words this visit touched.
        least_accesses: for so long it had not been touched when the burst ended, or longer.
        touches: how often this visit touched these words.
    """

    words: tuple[int, ...]
    touched: int
    least_accesses: int
    touches: int = 0


def open_lines(
    time: NDArray[np.integer],
    address: NDArray[np.uint64],
    accesses: int,
    line_bytes: int,
    least_accesses: int,
    count: int,
    rng: random.Random,
) -> tuple[OpenLine, ...]:
    """Choose among a burst's lines, uniformly, some that did not return.

    Args:
        time: which of the burst's references those are that are given, increasing, shape (n,).
        address: first byte of each, shape (n,): all references to some lines, or to all.
        accesses: how many references the burst has.
        line_bytes: size of a line, a power of two, at least 16.
        least_accesses: choose only among those that had not returned for so long.
        count: how many are wanted at most.
        rng: chooses.
    """
    line_bits = line_bytes.bit_length() - 1
    line = address >> np.uint64(line_bits)
    order = np.argsort(line, kind="stable")
    line, time, address = line[order], time[order], address[order]
    # A line's accesses are now in a row: the last of them is where it was left open.
    is_last = np.append(line[1:] != line[:-1], True)[: len(line)]
    left = np.flatnonzero(is_last & (time <= accesses - 1 - least_accesses))
    word = address >> np.uint64(_WORD_BITS)
    told = []
    for last in rng.sample(left.tolist(), min(count, len(left))):
        first = int(np.searchsorted(line, line[last]))
        apart = np.flatnonzero(np.diff(time[first : last + 1]) >= VISIT_ACCESSES)
        visit = slice(first + (int(apart[-1]) + 1 if len(apart) else 0), last + 1)
        times = Counter(word[visit].tolist())
        rarest = sorted(times, key=lambda each: (times[each], each))  # each touch is a hit
        words = _words(rarest, int(line[last]), line_bits - _WORD_BITS, rng)
        addresses = tuple(each << _WORD_BITS for each in words)
        touches = sum(times[each] for each in words)
        told.append(OpenLine(addresses, len(rarest), least_accesses, touches))
    return tuple(told)


def line_of_access(address: int, line_bytes: int, rng: random.Random) -> OpenLine:
    """The line of a single access that was sampled: of the others that touch it nothing is known.

    Args:
        address: first byte referenced.
        line_bytes: size of a line, a power of two, at least 16.
        rng: chooses the words beside its own.
    """
    line_bits = line_bytes.bit_length() - 1
    touched = [address >> _WORD_BITS]
    words = _words(touched, address >> line_bits, line_bits - _WORD_BITS, rng)
    return OpenLine(tuple(each << _WORD_BITS for each in words), 1, 1, 1)


def _words(touched: list[int], line: int, words_bits: int, rng: random.Random) -> list[int]:
    """Choose words of a line: the first of those touched, or half of all, others by chance."""
    words = 1 << words_bits
    if len(touched) >= _NEARLY_ALL * words:
        return touched[:1]
    others = [
        each for each in range(line << words_bits, (line + 1) << words_bits) if each not in touched
    ]
    return (touched + rng.sample(others, len(others)))[: words // 2]
