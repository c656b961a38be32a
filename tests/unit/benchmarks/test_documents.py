"""Tables go between their markers and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference.documents import replace_section


def test_only_the_section_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb <!-- y: begin -->\n")
    for _ in range(2):
        replace_section(page, "x", "new\n\n")
        expected = "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb <!-- y: begin -->\n"
        assert page.read_text() == expected
    with pytest.raises(ValueError, match="no section 'y'"):
        replace_section(page, "y", "new")


def test_a_new_file_can_be_filled_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    replace_section(page, "x", "one")
    replace_section(page, "x", "two")
    assert page.read_text() == "<!-- x: begin -->\ntwo\n<!-- x: end -->\n"
