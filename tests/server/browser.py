"""A headless Chromium over its debugging pipe: the least that tests of a page need."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """The browser: $CHROMIUM, or one of the usual names."""
    given = os.environ.get("CHROMIUM")
    return given or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One process; `page` opens a tab with storage of its own."""

    def __init__(self, path: str, folder: Path) -> None:
        read, out = self._pipe()
        into, self._write = self._pipe()
        self._read = read
        arguments = [
            path,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
            "about:blank",
        ]
        null = os.open(os.devnull, os.O_RDWR)
        actions = [
            (os.POSIX_SPAWN_DUP2, into, 3),
            (os.POSIX_SPAWN_DUP2, out, 4),
            *((os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)),
        ]
        self._pid = os.posix_spawn(path, arguments, os.environ, file_actions=actions, setpgroup=0)
        for fd in (into, out, null):
            os.close(fd)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    @staticmethod
    def _pipe() -> tuple[int, int]:
        # above 9, so that no copy to 3 and 4 in the child overwrites another
        ends = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
        for end in ends:
            os.close(end)
        return high[0], high[1]

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The result of a command; events that come meanwhile are kept in `events`."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        end = time.monotonic() + 120
        while True:
            got = self._receive(end)
            if got.get("id") == number:
                assert "error" not in got, got
                return dict(got["result"])
            if "method" in got:
                self.events.append(got)

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._read, 1 << 16)
            assert more, "the browser ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def page(self, url: str, **options: Any) -> Page:
        """A tab at this address, with no cookies and no storage of any other."""
        return Page(self, url, **options)

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        for _ in range(100):
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                break
            time.sleep(0.05)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


class Page:
    """A tab; `problems` are exceptions, console errors and broken content policies."""

    def __init__(
        self,
        browser: Browser,
        url: str,
        *,
        width: int = 1440,
        height: int = 900,
        dark: bool = False,
        still: bool = False,
    ) -> None:
        self._browser = browser
        self._context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call(
            "Target.createTarget", url="about:blank", browserContextId=self._context
        )["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.show(dark=dark, still=still)
        self.call("Page.navigate", url=url)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def show(self, *, dark: bool = False, still: bool = False) -> None:
        """As for people who asked for dark pages, or for pages that do not move."""
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if still else "no-preference",
        }
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": name, "value": value} for name, value in features.items()],
        )

    def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 120) -> Any:
        """The first true value of an expression."""
        end = time.monotonic() + seconds
        while True:
            found = self.run(f"(() => {{ try {{ return {script} }} catch {{ return null }} }})()")
            if found:
                return found
            assert time.monotonic() < end, (script, self.problems(), self.text("body")[:2000])
            time.sleep(0.03)

    def text(self, selector: str) -> str:
        """What people read in an element; '' when it is hidden or absent."""
        found = f"document.querySelector({json.dumps(selector)})"
        return str(self.run(f"{found}?.checkVisibility() ? {found}.innerText : ''"))

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str, code: int = 0) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _events(self, method: str) -> list[dict[str, Any]]:
        self.run("0")  # what came before is read by then
        return [
            event["params"]
            for event in self._browser.events
            if event["method"] == method and event.get("sessionId") == self._session
        ]

    def problems(self) -> list[str]:
        found = [
            str(e["exceptionDetails"].get("exception", {}).get("description", e))
            for e in self._events("Runtime.exceptionThrown")
        ]
        for entry in (e["entry"] for e in self._events("Log.entryAdded")):
            # a connection that was refused or a status that was handled is no fault of the page
            if entry["level"] == "error" and entry["source"] != "network":
                found.append(entry["text"])
        found += [
            str(e["args"])
            for e in self._events("Runtime.consoleAPICalled")
            if e["type"] in ("error", "assert")
        ]
        return found

    def requests(self) -> list[str]:
        """Every address that the page asked for."""
        return [e["request"]["url"] for e in self._events("Network.requestWillBeSent")]

    def close(self) -> None:
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)
