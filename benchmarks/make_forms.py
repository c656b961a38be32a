"""Adds to ``src/memsampd/sampler/replica/common_forms.bin``: forms of instructions that are used.

usage: python benchmarks/make_forms.py FILE...

Goes through the code of ELF files (libc, compilers, interpreters, numpy's libraries), or of others
that hold nothing but code (what a JIT made), and describes each form of instruction that is met.
A form takes 0.1 ms to describe; a target that is held cannot wait for that, so memsampd brings the
usual ones with it. Those that are there stay.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import iced_x86

from memsampd import _core
from memsampd.sampler.replica import common_forms

_MOST_BYTES = 4 << 20  # of one section: the rest has the same forms
_SECTION = struct.Struct("<IIQQQQ")
_EXECUTABLE = 4


def code_of(file: Path) -> Iterator[bytes]:
    """Yield the sections of an ELF file that hold code, or all of another one."""
    raw = file.read_bytes()
    if raw[:5] != b"\x7fELF\x02":
        yield raw
        return
    (table,) = struct.unpack_from("<Q", raw, 40)
    size, count = struct.unpack_from("<HH", raw, 58)
    for number in range(count):
        _, kind, flags, _, at, length = _SECTION.unpack_from(raw, table + size * number)
        if kind == 1 and flags & _EXECUTABLE:
            yield raw[at : at + min(length, _MOST_BYTES)]


def instructions(code: bytes) -> Iterator[bytes]:
    """Yield instructions one after the other, as a linear sweep finds them."""
    at = 0
    for instruction in iced_x86.Decoder(64, code):
        if not instruction.is_invalid:
            yield code[at : at + instruction.len]
        at += instruction.len


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="+", type=Path)
    args = parser.parse_args()
    examples = {int(row["form"]["key"]): bytes(row["example"]) for row in common_forms.read()}
    for file in args.file:
        before = len(examples)
        for code in code_of(file):
            for instruction in instructions(code):
                taken = _core.take_apart(instruction)
                if taken is not None:
                    examples.setdefault(taken[0], instruction)
        print(f"{file}: {len(examples) - before} new forms, {len(examples)} in all")
    size_bytes = common_forms.write(examples.values())
    print(f"{common_forms.FILE}: {size_bytes} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
