"""Control headless Chromium over a pipe (DevTools protocol) to show one page, without other network
access."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.services.session import REPOSITORY
from tests.support.requirements import require_prepared, skip_or_fail

_TIMEOUT = 90.0  # seconds; its start is slow on a busy machine
_AXE = REPOSITORY / ".cache" / "axe"
_ISOLATED = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


@dataclass
class Browser:
    """One page of the browser; `said` are console messages, `requested` the requested addresses."""

    process: subprocess.Popen[bytes]
    to: int
    back: int
    said: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    page: str = ""
    _count: int = 0
    _read: bytes = b""

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one request and return its answer; record events meanwhile."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self.page:
            message["sessionId"] = self.page
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _TIMEOUT
        while b"\0" not in self._read:
            ready, _, _ = select.select([self.back], [], [], max(0.0, end - time.monotonic()))
            some = os.read(self.back, 1 << 16) if ready else b""
            if not some:
                raise ConnectionError("chromium does not answer")
            self._read += some
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Log.entryAdded":
            self.said.append(parameters["entry"]["text"])
        elif event.get("method") in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown"}:
            self.said.append(json.dumps(parameters))
        elif event.get("method") == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])

    def open(self, page: Path | str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a file or an address in a window of this size."""
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])
        self.do("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while self.evaluate("document.readyState") != "complete":
            pass

    def evaluate(self, expression: str) -> Any:
        """Return the awaited value of an expression in the page."""
        answer = self.do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def photograph(self, path: Path, *, height: int) -> None:
        """Save a small screenshot of the page, down to `height`, as .png or .webp, which takes half as much."""
        size = self.do("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": min(size["height"], height),
            "scale": 0.7,
        }
        kind = {"format": "png"} if path.suffix == ".png" else {"format": "webp", "quality": 50}
        shot = self.do("Page.captureScreenshot", **kind, clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def accessibility_problems(self, *, minor: bool = False) -> list[dict[str, Any]]:
        """Return axe-core's findings that are serious or worse, or with `minor` all of them."""
        [script] = _AXE.glob("lib/python3*/site-packages/axe_playwright_python/axe.min.js")
        self.evaluate(script.read_text("utf-8") + ";0")
        found = self.evaluate("axe.run(document).then(done => done.violations)")
        return [each for each in found if minor or each["impact"] in {"serious", "critical"}]


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile; retry once if it ends during its start."""
    program = shutil.which("chromium")
    if program is None:
        skip_or_fail("chromium is not installed")
    require_prepared(_AXE, "axe")
    try:
        made = _start(program, profile / "1")
    except (ConnectionError, BrokenPipeError):
        made = _start(program, profile / "2")
    try:
        yield made
    finally:
        _end(made)


def _start(program: str, profile: Path) -> Browser:
    read_here, write_there = os.pipe()
    read_there, write_here = os.pipe()
    words = [program, *_ISOLATED, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
    # it reads from descriptor 3 and writes to 4
    moved = f'exec "$@" 3<&{read_there} 4>&{write_there}'
    process = subprocess.Popen(
        ["bash", "-c", moved, "chromium", *words],
        pass_fds=(read_there, write_there),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read_there)
    os.close(write_there)
    made = Browser(process, write_here, read_here)
    try:
        target = made.do("Target.createTarget", url="about:blank")["targetId"]
        made.page = made.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network"):
            made.do(f"{domain}.enable")
    except BaseException:
        _end(made)
        raise
    return made


def _end(made: Browser) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(made.process.pid, 9)
    made.process.wait()
    os.close(made.to)
    os.close(made.back)
