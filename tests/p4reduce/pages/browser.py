"""Headless Chromium, spoken to over two pipes by its DevTools protocol: nothing to install but Chromium."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # which root needs
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-pipe",
)
_PATIENCE_S: Final = 60.0


class NoBrowserError(Exception):
    """Error where no Chromium works here; says why."""


class Browser:
    """One page in a Chromium with a profile of its own. It ends with the context."""

    def __init__(self, profile: Path, *, log: Path) -> None:
        program = next(filter(None, map(shutil.which, _NAMES)), None)
        if program is None:
            raise NoBrowserError(f"none of {', '.join(_NAMES)} is on the PATH")
        self._commands, to_browser = _pipe(), _pipe()  # (read, write)
        self._answers = to_browser
        self._log = log
        self._program = program
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                pass_fds=(3, 4),
                preexec_fn=self._as_three_and_four,
                start_new_session=True,
            )
        os.close(self._commands[0])
        os.close(self._answers[1])
        self._received = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End Chromium with all its processes."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for end in (self._commands[1], self._answers[0]):
            os.close(end)

    def open(self, url: str, *, width: int = 1400, height: int = 1000, scheme: str = "light") -> None:
        """Load a page and wait until its charts are drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        self.until("document.documentElement?.dataset.drawn === 'yes'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of JavaScript (of a promise: what it comes to)."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait for JavaScript to become true. AssertionError with what the page said if it does not."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise AssertionError(f"never became true: {expression}; the page said {self.complaints()}")
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        """Save the whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def requested(self) -> list[str]:
        """Return the URLs that the page asked for, its own included."""
        asked = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in asked]

    def complaints(self) -> list[str]:
        """Return exceptions, errors and warnings that its console would show."""
        said = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                said.append(json.dumps(params["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in (
                "error",
                "warning",
                "assert",
            ):
                said.append(json.dumps(params["args"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                said.append(json.dumps(params["entry"]))
        return said

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; what it answers."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        try:
            os.write(self._commands[1], json.dumps(message).encode() + b"\0")
        except BrokenPipeError as error:
            raise self._gone("ended") from error
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer:
                self.events.append(answer)

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next((target for target in targets if target["type"] == "page"), None)
        identity = (
            page["targetId"] if page else self.call("Target.createTarget", url="about:blank")["targetId"]
        )
        self._session = self.call("Target.attachToTarget", targetId=identity, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers[0]], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._answers[0], 1 << 20) if ready else b""
            if not piece:
                raise self._gone("ended" if ready else "does not answer")
            self._received += piece
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _gone(self, why: str) -> NoBrowserError:
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return NoBrowserError(f"{self._program} {why}: {' '.join(last)}")

    def _as_three_and_four(self) -> None:
        """Make files 3 and 4 of the child those that it reads commands from and writes answers to."""
        reading, writing = os.dup(self._commands[0]), os.dup(self._answers[1])
        os.dup2(reading, 3)
        os.dup2(writing, 4)


def _pipe() -> tuple[int, int]:
    """Return ends that are neither 3 nor 4, which the browser's get."""
    found: list[int] = []
    low: list[int] = []
    while len(found) < 2:
        ends = os.pipe()
        if min(ends) > 4:
            found += ends
        else:
            low += ends
    for end in low:
        os.close(end)
    return found[0], found[1]
