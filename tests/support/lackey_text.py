"""A slow and obvious reader of lackey's text: the oracle of the quick one."""

from __future__ import annotations

import re

from tracing_rows import Row


def obvious(text: str) -> tuple[list[Row], int]:
    """Rows and instructions of a text without faults."""
    found: list[Row] = []
    ip = instructions = 0
    for line in text.splitlines():
        match = re.fullmatch(r"(I  | [LSM] )([0-9A-Fa-f]+),(\d+)", line)
        if match is None:
            assert line[:2] in ("", "==", "--", "**")
            continue
        address, size = int(match[2], 16), int(match[3])
        match match[1].strip():
            case "I":
                ip, instructions = address, instructions + 1
            case "M":
                found += [(ip, address, size, False), (ip, address, size, True)]
            case kind:
                found.append((ip, address, size, kind == "S"))
    return found, instructions
