"""Many lines of text at once: numbers as letters, by columns.

A field is a pair of arrays of shape (n, width): ASCII codes, and which of them are meant. Lines are
fields side by side, with what is not meant left out.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Field: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.bool_]]

SLICE_ROWS = 1 << 15  # rows to write at once: their letters fit into a second-level cache
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_U16_POWERS = np.array([10_000, 1_000, 100, 10, 1], np.uint32)


def fixed(text: str, rows: int, shown: NDArray[np.bool_] | None = None) -> Field:
    """The same text in each row, or in those where ``shown`` says so."""
    letters = np.frombuffer(text.encode(), np.uint8)
    shape = rows, len(letters)
    meant = np.broadcast_to(np.True_ if shown is None else shown[:, None], shape)
    return np.broadcast_to(letters, shape), meant


def chosen(letters: str, which: NDArray[np.integer]) -> Field:
    """One of some letters a row."""
    codes = np.frombuffer(letters.encode(), np.uint8)[which][:, None]
    return codes, np.ones(codes.shape, np.bool_)


def hexadecimal(
    numbers: NDArray[np.uint64], least_digits: int = 1, shown: NDArray[np.bool_] | None = None
) -> Field:
    """Numbers as lower-case hexadecimal digits, padded with zeros to ``least_digits``."""
    octets = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    digits = np.stack([octets >> 4, octets & 15], axis=2).reshape(-1, 16)
    return _HEX_DIGITS[digits], _significant(digits, least_digits, shown)


def decimal(numbers: NDArray[np.uint16]) -> Field:
    """Numbers below 65,536 as decimal digits."""
    digits = (numbers[:, None] // _U16_POWERS % 10).astype(np.uint8)
    return _HEX_DIGITS[digits], _significant(digits, 1, None)


def join(*fields: Field) -> bytes:
    """The rows of all fields side by side; a line break is a field like any other."""
    letters = np.concatenate([field[0] for field in fields], axis=1)
    meant = np.concatenate([field[1] for field in fields], axis=1)
    text: NDArray[np.uint8] = letters[meant]
    return text.tobytes()


def _significant(
    digits: NDArray[np.uint8], least_digits: int, shown: NDArray[np.bool_] | None
) -> NDArray[np.bool_]:
    meant = np.logical_or.accumulate(digits != 0, axis=1)
    meant[:, -least_digits:] = True
    return meant if shown is None else meant & shown[:, None]
