"""Writes syscall_names.h: the kernel headers' numbers of system calls as a table of names.

usage: python syscall_names.py OUTPUT COMPILER... (run by meson)
"""

import re
import subprocess
import sys
from pathlib import Path


def main(output: Path, compiler: list[str]) -> None:
    """Ask the preprocessor for every __NR_ macro."""
    macros = subprocess.run(
        [*compiler, "-E", "-dM", "-x", "c", "-"],
        input="#include <asm/unistd_64.h>\n",
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    names = re.findall(r"^#define __NR_(\w+) (\d+)$", macros, re.MULTILINE)
    rows = [f'    [{number}] = "{name}",' for name, number in names]
    output.write_text(
        "\n".join(["static const char *const syscall_names[] = {", *rows, "};"]) + "\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
