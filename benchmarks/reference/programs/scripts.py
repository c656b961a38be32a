"""One interpreter that runs the scripts of a folder one after the other: like code, unlike data.

usage: scripts.py FOLDER ROUNDS
"""

import sys
from pathlib import Path

for _ in range(int(sys.argv[2])):
    for path in sorted(Path(sys.argv[1]).glob("*.py")):
        exec(compile(path.read_text(encoding="utf-8"), path.name, "exec"), {"__name__": path.stem})
