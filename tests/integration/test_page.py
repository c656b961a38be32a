"""The page in a real Chromium, on a real program observed by a real ``memsampd attach --page``."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from chromium import Chromium
from commands import MEMSAMPD
from msgspec.structs import replace
from serving import lasting_node_status, now_snapshot, serving
from tracees import running
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.exporters.history import History
from memsampd.exporters.snapshot import Snapshot
from memsampd.web.process import WebProcess

# A stretch without memory, then one over a working set; again and again. Each takes several
# windows, however fast the CPU is.
TWO_KINDS = """
import hashlib, time
def repeat(work):
    end = time.process_time() + 0.8
    while time.process_time() < end:
        work()
while True:
    repeat(lambda: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 20000))
    repeat(lambda: len({i: str(i) for i in range(20000)}))
"""
PHASES = "[...document.querySelectorAll('#phases input')].map(each => each.value)"
PICKED = "document.querySelector('#phases input:checked').value"


def read(figure: str) -> str:
    """Expression for what a figure says of where its cursor is."""
    return f"document.querySelector('#{figure}-readout').innerText"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[str]:
    """The address of the page of a session on a program of two kinds of work."""
    words = tmp_path / "words"
    with (
        words.open("w") as file,
        running(sys.executable, "-c", TWO_KINDS) as target,
        running(
            *(MEMSAMPD, "attach", str(target.pid), "--page", "--listen", "127.0.0.1:0"),
            *("--own-cpu", "0.5", "--budget", "0.1"),
            stdout=subprocess.DEVNULL,
            stderr=file,
        ) as session,
    ):
        said = wait_for(
            lambda: re.search(r"page: (\S+)", words.read_text()) or session.poll() is not None,
            "the address of the page",
        )
        assert session.poll() is None, words.read_text()
        yield said[1]
        session.terminate()
        assert session.wait(PATIENCE_SECONDS) == 0, words.read_text()


def clean(browser: Chromium, url: str) -> None:
    """Nothing went wrong, and nobody else was asked for anything."""
    assert browser.complaints() == []
    asked = {each for each in browser.requested() if not each.startswith(("data:", "blob:"))}
    assert {urlsplit(each).netloc for each in asked} == {urlsplit(url).netloc}


def test_phases_of_a_real_program_appear_and_can_be_picked_and_saved(
    attached: str, chromium: Chromium, tmp_path: Path
) -> None:
    with chromium.tab(tmp_path, (1280, 800)) as browser:
        browser.go(attached)
        browser.until(f"{PHASES}.length >= 3")  # the whole run and two phases
        # To the largest size: 64 MiB, or a larger cache of this machine.
        browser.until(r"/to [\d.]+ % at /.test(document.querySelector('#curves').ariaLabel)")
        browser.until(r"/phases \d/.test(document.querySelector('#heat').ariaLabel)")
        assert browser.evaluate(PICKED) == "run"

        # One is picked by keyboard.
        browser.evaluate("document.querySelector('#phases input:checked').focus()")
        browser.press("ArrowRight")
        picked = browser.until(f"{PICKED} !== 'run' && {PICKED}")
        browser.until(f"document.querySelector('#curves').ariaLabel.includes('phase {picked}')")
        # The figures are read by keyboard, too.
        browser.evaluate("document.querySelector('#heat').focus()")
        browser.press("ArrowLeft")
        browser.until(rf"/^\d\d:\d\d:\d\d[:,] /.test({read('heat')})")
        browser.evaluate("document.querySelector('#curves').focus()")
        browser.press("ArrowRight")
        browser.until(f"{read('curves')}.startsWith('phase {picked}, 1 KiB')")

        for what in ("heat-csv", "heat-png", "curves-csv", "curves-png"):
            browser.evaluate(f"document.querySelector('#{what}').click()")
        tables = {path.stem.split("-")[-1]: path for path in browser.downloaded("csv", 2)}
        pictures = browser.downloaded("png", 2)
        clean(browser, attached)
    curves = list(csv.DictReader(tables["curves"].open()))
    assert {row["phase"] for row in curves} >= {"whole run", picked}
    known = [row for row in curves if row["miss_ratio"]]
    assert known
    assert all(
        0 <= float(row["low"]) <= float(row["miss_ratio"]) <= float(row["high"]) <= 1
        for row in known
    )
    windows = list(csv.DictReader(tables["windows"].open()))
    assert sum(float(row["cpu_seconds"]) for row in windows) > 0
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 5000


@pytest.fixture(scope="module")
def many() -> Iterator[WebProcess]:
    """50 targets, the first of which has changed its phase, and one that was let go of."""
    with serving(*(now_snapshot(pid=pid) for pid in range(1000, 1050))) as web:
        web.publish(replace(now_snapshot(pid=1049), alive=False))
        web.publish_node(lasting_node_status())
        for phase in (0, 1, 0):
            time.sleep(0.5)
            web.publish(worked(now_snapshot(pid=1000, phase=phase)))
        yield web


def worked(snapshot: Snapshot) -> Snapshot:
    """Its phase has used CPU time up to now."""
    estimate = snapshot.estimate
    phases = tuple(
        replace(phase, cpu_seconds=snapshot.time_seconds) if phase.id == snapshot.phase else phase
        for phase in estimate.phases
    )
    return replace(snapshot, estimate=replace(estimate, phases=phases))


def test_many_targets_are_listed_filtered_and_chosen(
    many: WebProcess, chromium: Chromium, tmp_path: Path
) -> None:
    count = "document.querySelectorAll('#targets a').length"
    with chromium.tab(tmp_path, (1280, 800)) as browser:
        browser.go(many.url)
        browser.until(f"{count} === 50")
        browser.evaluate("document.querySelector('#filter').focus()")
        browser.call("Input.insertText", text="1007")
        browser.until(f"{count} === 1")
        browser.press("Tab")
        browser.press("Enter")
        browser.until("document.querySelector('#title')?.innerText === 'sqlite3 (pid 1007)'")
        browser.until("document.querySelector('#targets a').ariaCurrent === 'true'")
        clean(browser, many.url)


def test_what_comes_from_the_store_is_said_to(chromium: Chromium, tmp_path: Path) -> None:
    before, now_seconds = History(), time.monotonic()
    for second in range(30):
        at = replace(now_snapshot(), time_seconds=now_seconds - 120 + second)
        before.add(worked(at))
    past = before.past()
    assert past is not None
    snapshot = worked(now_snapshot())
    phases = tuple(
        replace(phase, stored_bursts=7 if phase.id == 1 else 0, stored_age_seconds=3600.0)
        for phase in snapshot.estimate.phases
    )
    snapshot = replace(snapshot, estimate=replace(snapshot.estimate, phases=phases))
    with closing(WebProcess("127.0.0.1:0")) as web:
        web.publish_past(snapshot.target, past.renamed({0: 0}))
        web.publish(snapshot)
        with chromium.tab(tmp_path, (1280, 800)) as browser:
            browser.go(web.url)
            said = "document.querySelector('#{}')?.innerText"
            browser.until(f"{said.format('heat-stored')}.includes('before memsampd was restarted')")
            known = said.format("phases-stored")
            browser.until(f"{known}.includes('1 (7 from the store, 1.0 h old)')")
            browser.evaluate("document.querySelector('#heat').focus()")
            browser.until(
                "document.querySelector('#heat').dispatchEvent(new KeyboardEvent('keydown',"
                f" {{key: 'ArrowLeft'}})) || {read('heat')}.includes('(from the store)')"
            )
            clean(browser, web.url)


def test_light_and_dark_differ_and_the_figures_are_painted_in_both(
    many: WebProcess, chromium: Chromium, tmp_path: Path
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    colours = """[...document.querySelectorAll('#heat canvas')].map(canvas => {
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        const found = new Set();
        for (let at = 0; at < data.length; at += 4)
            if (data[at + 3] === 255) found.add(data.slice(at, at + 3).join());
        return [...found].sort().join(';');
    })[0]"""
    with chromium.tab(tmp_path, (1280, 800), "light") as browser:
        browser.go(many.url)
        browser.until(f"{PHASES}.length >= 3")
        browser.until("document.querySelector('#heat').ariaLabel.includes('phases 0')")
        seen = {}
        for scheme in ("light", "dark"):
            browser.set_scheme(scheme)
            browser.until(f"document.documentElement.dataset.theme === '{scheme}'")
            seen[scheme] = browser.evaluate(ground), browser.evaluate(colours)
        assert seen["light"][0] != seen["dark"][0]
        assert seen["light"][1].count(";") > 5
        assert seen["light"][1] != seen["dark"][1]
        browser.evaluate("document.querySelector('#theme').click()")
        browser.until("document.documentElement.dataset.theme === 'light'")  # chosen by hand
        clean(browser, many.url)


def test_everything_has_a_name_and_each_figure_a_table(
    many: WebProcess, chromium: Chromium, tmp_path: Path
) -> None:
    with chromium.tab(tmp_path, (1280, 800)) as browser:
        browser.go(many.url)
        browser.until(f"{PHASES}.length >= 3")
        browser.until("document.querySelector('#heat').ariaLabel.includes('phases 0')")
        for table in ("heat-table", "curves-table"):
            browser.evaluate(f"document.querySelector('#{table}').closest('details').open = true")
            browser.until(f"document.querySelectorAll('#{table} tbody tr').length > 1")
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        operable = {"button", "link", "radio", "combobox", "searchbox", "image", "table"}
        named = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in operable
        ]
        assert {role for role, _ in named} == operable
        assert [role for role, name in named if not name.strip()] == []
        text = browser.evaluate("document.body.innerText")
        assert "What is not known" in text
        assert "nginx (5), failed: nginx is traced by gdb; end gdb" in text
        clean(browser, many.url)


def test_on_a_telephone_nothing_is_cut_off(
    many: WebProcess, chromium: Chromium, tmp_path: Path
) -> None:
    with chromium.tab(tmp_path, (390, 844)) as browser:
        browser.go(many.url)
        browser.until(f"{PHASES}.length >= 3")
        assert browser.evaluate("document.documentElement.scrollWidth") == 390
        clean(browser, many.url)


def test_who_tells_nothing_new_is_not_live(chromium: Chromium, tmp_path: Path) -> None:
    """The server answers all the same, and with the same.

    A session that is over tells nothing while it lingers; a daemon that tells nothing hangs.
    """
    connection = "document.querySelector('#connection')"
    long_ago = time.monotonic() - 2 * 86_400
    old = replace(now_snapshot(), time_seconds=long_ago)
    with serving(old) as web, chromium.tab(tmp_path, (1280, 800)) as browser:
        browser.go(web.url)
        browser.until(f"{connection}?.innerText.startsWith('nothing new for 2.0 d')")
        assert not browser.evaluate(f"{connection}.innerText.includes('hangs')")
        assert not browser.evaluate(f"{connection}.classList.contains('lost')")
        web.publish_node(replace(lasting_node_status(), time_seconds=long_ago))
        browser.until(f"{connection}.innerText.endsWith(': memsampd hangs')")
        assert browser.evaluate(f"{connection}.classList.contains('lost')")
        web.publish_node(lasting_node_status())
        browser.until(f"{connection}.innerText.startsWith('live')")
        assert not browser.evaluate(f"{connection}.classList.contains('lost')")
        clean(browser, web.url)


def test_history_is_asked_for_by_the_clock_of_the_server(
    many: WebProcess, chromium: Chromium, tmp_path: Path
) -> None:
    wrong = "const now = Date.now; Date.now = () => now.call(Date) + 10 * 86_400_000;"
    with chromium.tab(tmp_path, (1280, 800)) as browser:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=wrong)
        browser.go(many.url)
        browser.until(f"{PHASES}.length >= 3")
        asked = [parse_qs(urlsplit(each).query) for each in browser.requested()]
        since = [float(each["since"][0]) for each in asked if "since" in each]
        assert since
        assert all(abs(each + 900 - time.time()) < 86_400 for each in since)


# Answers about windows wait while `hold` is set.
HOLD = """
window.held = [];
const really = window.fetch;
window.fetch = (path, ...rest) => window.hold && path.includes("/windows")
  ? new Promise((done) => window.held.push(() => done(really(path, ...rest))))
  : really(path, ...rest);
"""


def test_an_answer_about_another_range_than_the_chosen_one_is_not_drawn(
    chromium: Chromium, tmp_path: Path
) -> None:
    before, now_seconds = History(), time.monotonic()
    for second in range(-7200, 0, 10):
        before.add(worked(replace(now_snapshot(), time_seconds=now_seconds + second)))
    past, snapshot = before.past(), worked(now_snapshot())
    assert past is not None
    steps = "document.querySelector('#heat')?.ariaLabel?.match(/steps of [^,]+/)?.[0]"
    with closing(WebProcess("127.0.0.1:0")) as web, chromium.tab(tmp_path, (1280, 800)) as browser:
        web.publish_past(snapshot.target, past.renamed({0: 0, 1: 1, 2: 2}))
        web.publish(snapshot)
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=HOLD)
        browser.go(web.url)
        short = browser.until(steps)
        browser.evaluate("window.hold = true")
        browser.until("window.held.length > 0")
        browser.evaluate(
            f"""window.drawn = [];
            new MutationObserver(() => window.drawn.push({steps}))
              .observe(document.querySelector('#heat'), {{ attributeFilter: ['aria-label'] }});
            document.querySelector('#range').value = '3600';
            document.querySelector('#range').dispatchEvent(new Event('change'));
            window.hold = false;
            window.held.forEach((go) => go());"""
        )
        browser.until(f"{steps} !== '{short}'")
        assert short not in browser.evaluate("window.drawn")
        clean(browser, web.url)


def test_a_server_that_has_gone_is_said_to_be_gone(chromium: Chromium, tmp_path: Path) -> None:
    with chromium.tab(tmp_path, (1280, 800)) as browser:
        with serving(now_snapshot()) as web:
            browser.go(web.url)
            browser.until(f"{PHASES}.length >= 3")
        browser.until("document.querySelector('#connection').classList.contains('lost')")
