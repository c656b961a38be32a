"""A headless Chromium, driven through the DevTools protocol over two pipes: no package needed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from needed import lacking
from waiting import PATIENCE_SECONDS, wait_for

_CLOSE_SECONDS = 20


def chromium_path() -> str:
    """Where Chromium is; skips the test where it is not installed, fails it in CI."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        lacking("chromium is not installed (Debian package: chromium)")
    return path


class Chromium:
    """One browser, with one tab at a time.

    Args:
        profile: a folder of its own.
    """

    def __init__(self, profile: Path) -> None:
        self.downloads = profile
        self.events: list[dict[str, Any]] = []
        self._last_id = 0
        self._rest = b""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        self._process = subprocess.Popen(
            [
                "bash",  # sh may know descriptors below 10 only
                "-c",
                f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}',
                "bash",
                chromium_path(),
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--no-first-run",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile / 'profile'}",
                "about:blank",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._session: str | None = None

    @contextlib.contextmanager
    def tab(self, downloads: Path, size: tuple[int, int], scheme: str = "light") -> Iterator[Self]:
        """A tab that knows nothing of those before; everything of interest in it is reported.

        Args:
            downloads: a folder for what is downloaded.
            size: of the page in CSS pixels.
            scheme: "light" or "dark".
        """
        self._session = None  # of one whose test has failed
        context = self.call("Target.createBrowserContext")
        page = self.call("Target.createTarget", url="about:blank", **context)
        self.events, self.downloads = [], downloads
        self._session = self.call("Target.attachToTarget", flatten=True, **page)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(size)
        self.set_scheme(scheme)
        where = {"behavior": "allow", "downloadPath": str(downloads)}
        self.call("Browser.setDownloadBehavior", **where, **context)
        yield self
        self._session = None
        self.call("Target.disposeBrowserContext", **context)

    def resize(self, size: tuple[int, int]) -> None:
        """Change the size of the page."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=1,
            mobile=False,
        )

    def set_scheme(self, scheme: str) -> None:
        """Prefer light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def call(self, method: str, **parameters: Any) -> Any:
        """Run a command and return its result."""
        self._last_id += 1
        command: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._last_id:
                assert "error" not in message, message
                return message["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], PATIENCE_SECONDS)
            assert ready, "chromium does not answer"
            data = os.read(self._in, 1 << 16)
            assert data, "chromium has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message and message.get("sessionId") == self._session:
            self.events.append(message)
        return message

    def go(self, url: str) -> None:
        """Open a page."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Evaluate an expression in the page; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true; returns its value."""
        return wait_for(lambda: self.evaluate(expression), expression)

    def press(self, key: str) -> None:
        """Press a key, such as "Tab", "ArrowRight" or " "."""
        codes = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"Enter": "\r", " ": " "}.get(key)
        code = codes.get(key, ord(text) if text else 0)
        name = "Space" if key == " " else key
        common = {"key": key, "code": name, "windowsVirtualKeyCode": code}
        more = {} if text is None else {"text": text}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def downloaded(self, suffix: str, count: int = 1) -> list[Path]:
        """Wait for so many files of a kind."""

        def complete() -> list[Path] | None:
            self.call("Runtime.evaluate", expression="1")  # takes in events meanwhile
            found = sorted(self.downloads.glob(f"*.{suffix}"))
            return found if len(found) >= count else None

        files: list[Path] = wait_for(complete, f"{count} files *.{suffix}")
        return files

    def requested(self) -> set[str]:
        """All addresses that were asked for so far."""
        return {
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        }

    def complaints(self) -> list[str]:
        """Errors and warnings on the console so far, and exceptions that nobody caught."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                found.append(details.get("exception", details).get("description", str(details)))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
                found.append(str(params["args"]))
        return found

    def close(self) -> None:
        """End the browser and all its processes."""
        with contextlib.suppress(AssertionError, OSError):  # it has ended before it could answer
            self._session = None
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
