"""Links between documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")))


def anchors(document: Path) -> set[str]:
    """Return what headings of a document are called, as GitHub calls them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_links_lead_to_files_and_headings() -> None:
    broken, checked = [], 0
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
            name, _, anchor = link.partition("#")
            if "://" in link:
                continue
            file = (document.parent / name) if name else document
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(f"{document.name}: {link}")
            checked += 1
    assert not broken
    assert checked > 100
