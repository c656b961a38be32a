"""What the kernel is and was built with."""

from __future__ import annotations

import gzip
import re
from pathlib import Path


def parse_release(release: str) -> tuple[int, int]:
    """Major and minor version of a release string; (0, 0) if it has none."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def read_config(option: str, release: str, root: Path = Path("/")) -> str | None:
    """Value of a build option ("y", "m", "n"); None where the configuration is not readable.

    Args:
        option: with its CONFIG_ in front.
        release: the running release, as uname(2) says.
        root: where proc and boot are.
    """
    text = _config_text(release, root)
    if text is None:
        return None
    match = re.search(rf"^{re.escape(option)}=(.*)$", text, re.MULTILINE)
    return match[1] if match else "n"


def _config_text(release: str, root: Path) -> str | None:
    try:
        return gzip.decompress((root / "proc/config.gz").read_bytes()).decode()
    except (OSError, EOFError):
        pass
    try:
        return (root / f"boot/config-{release}").read_text()
    except OSError:
        return None


def selected_word(path: Path) -> str:
    """The word in brackets of a sysfs choice ("always [madvise] never"); empty if unknown."""
    try:
        match = re.search(r"\[(\w+)\]", path.read_text())
    except OSError:
        return ""
    return match[1] if match else ""
