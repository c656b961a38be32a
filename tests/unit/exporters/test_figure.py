from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented import burst_record, recording_of, window_record, write_recording
from PIL import Image

from memsampd.errors import CapabilityError
from memsampd.exporters.analysis import Analysis, analyse
from memsampd.exporters.figure import draw, draw_beside
from memsampd.exporters.figure_panels import OTHER_COLOUR, areas_of, phase_colours
from memsampd.exporters.page import to_html
from memsampd.exporters.recording import read_recording
from memsampd.models.sizes import default_sizes


def analysis_of(path: Path) -> Analysis:
    return analyse(read_recording(path), "lru", default_sizes(4))


def test_png_shows_each_phase_in_its_colour(recording_path: Path) -> None:
    analysis = analysis_of(recording_path)
    image = Image.open(io.BytesIO(draw(analysis, "png"))).convert("RGB")
    seen = {colour for _, colour in image.getcolors(1 << 24) or []}
    for colour in phase_colours(analysis).values():
        assert tuple(bytes.fromhex(colour[1:])) in seen
    assert len(seen) > 200  # the heat map


def test_svg_is_well_formed_and_reproducible(recording_path: Path) -> None:
    analysis = analysis_of(recording_path)
    svg = draw(analysis, "svg")
    assert ET.fromstring(svg).tag.endswith("svg")
    assert draw(analysis, "svg") == svg


def test_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "x", command="<script>$x^2$ &")
    page = to_html(analysis_of(path))
    assert "<script" not in page
    assert page.count("<tr>") == 1 + 4
    links = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "url(http" not in page
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize("windows", [0, 1])
def test_hardly_anything_can_be_drawn(windows: int) -> None:
    recording = recording_of([window_record(i, 0) for i in range(windows)])
    analysis = analyse(recording, "lru", default_sizes(4))
    assert draw(analysis, "png").startswith(b"\x89PNG")
    assert "warning" in to_html(analysis)


def test_missing_matplotlib_is_explained(
    recording_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(CapabilityError, match=r"memsampd\[report\]"):
        draw(analysis_of(recording_path), "png")


def test_several_recordings_share_axes_and_colours(tmp_path: Path) -> None:
    paths = [write_recording(tmp_path / name, command=name) for name in ("old", "new")]
    analyses = [analysis_of(path) for path in paths]
    svg = draw_beside(analyses, "svg")
    assert ET.fromstring(svg).tag.endswith("svg")
    assert draw_beside(analyses, "svg") == svg
    one = Image.open(io.BytesIO(draw_beside(analyses[:1], "png")))
    two = Image.open(io.BytesIO(draw_beside(analyses, "png")))
    assert two.width > one.width
    assert two.height == one.height


def test_a_recording_without_windows_beside_another(recording_path: Path) -> None:
    empty = analyse(recording_of([]), "lru", default_sizes(4))
    assert draw_beside([empty, analysis_of(recording_path)], "png").startswith(b"\x89PNG")


def test_a_long_phase_of_few_accesses_has_a_colour_and_a_row() -> None:
    long = 9
    phases = [phase for phase in range(long) for _ in range(2)] + 40 * [long]
    windows = [window_record(index, phase) for index, phase in enumerate(phases)]
    bursts = [
        burst_record(phase, 2 * phase, rate=1e6 if phase == long else 1e9)
        for phase in range(long + 1)
    ]
    analysis = analyse(recording_of(windows, bursts), "lru", default_sizes(4))
    assert min(analysis.phases, key=lambda phase: phase.weight).id == long
    colours = phase_colours(analysis)
    assert colours[long] != OTHER_COLOUR
    assert list(colours.values()).count(OTHER_COLOUR) == 3


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=8))
def test_areas_hold_the_cells_of_which_it_is_so_and_no_others(columns: list[list[bool]]) -> None:
    is_so = np.array(columns).T
    found = np.zeros(is_so.shape, int)
    for corners in areas_of(is_so, np.arange(len(columns) + 1.0), np.arange(6.0)):
        (left, low), (right, high) = corners[0], corners[2]
        found[int(low) : int(high), int(left) : int(right)] += 1
    np.testing.assert_array_equal(found, is_so)
