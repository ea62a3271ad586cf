"""A headless Chromium that a test drives as a person would, over its debugging pipe: no port, no further library."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 30.0  # that anything may take


class Browser:
    """One page of a browser; errors of its console and every address that it asked for are kept."""

    def __init__(self, program: str, folder: str) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        quiet = ["--disable-background-networking", "--disable-component-update", "--no-first-run", "--no-pings",
                 "--disable-sync", "--mute-audio", "--disable-gpu",
                 "--autoplay-policy=no-user-gesture-required"]  # fmt: skip
        arguments = [program, "--headless=new", "--no-sandbox", f"--user-data-dir={folder}", "--remote-debugging-pipe",
                     "--disable-dev-shm-usage", *quiet]  # fmt: skip
        # it reads commands from number 3 and writes to number 4; ours must not stand on these
        ends = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in (to_browser, from_browser)]
        actions: list[Any] = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(ends, start=3)]
        actions += [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        self._process = os.posix_spawn(program, arguments, os.environ, file_actions=actions, setpgroup=0)
        for one in (to_browser, from_browser, *ends):
            os.close(one)
        self._rest, self._number, self._replies = b"", 0, {}
        self.errors: list[str] = []
        self.asked: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol on the page."""
        return self._send(method, session=self._session, **parameters)

    def open(self, address: str, *, width: int = 1200, height: int = 900) -> None:
        """Show an address, in a window of a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.call("Page.navigate", url=address)

    def ask(self, expression: str) -> Any:
        """The value of an expression, awaited."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = SECONDS) -> Any:
        """The value of an expression as soon as it is true."""
        end = time.monotonic() + seconds
        asked = (
            f"(() => {{ try {{ const v = {expression}; return v instanceof Node || v }} catch {{ return false }} }})()"
        )
        while not (value := self.ask(asked)):
            if time.monotonic() > end:
                text = self.ask("document.body.innerText.slice(0, 1500)")
                raise AssertionError(f"never true: {expression}\n{text}\n{self.errors}")
            time.sleep(0.05)
        return value

    def text(self) -> str:
        """What can be read on the page."""
        return str(self.ask("document.body.innerText"))

    def click(self, words: str) -> None:
        """Click the button or link that has these words."""
        find = (
            f"[...document.querySelectorAll('button, a')].find((one) => one.textContent.trim() === {json.dumps(words)})"
        )
        self.until(f"Boolean({find})")
        self.ask(f"{find}.click()")

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + SECONDS
        while self._number not in self._replies:
            self._read(end)
        reply = self._replies.pop(self._number)
        assert "error" not in reply, (method, reply["error"])
        return reply["result"]

    def _read(self, end: float) -> None:
        ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
        chunk = os.read(self._in, 1 << 20) if ready else b""
        if not chunk:
            raise AssertionError("the browser does not answer")
        *whole, self._rest = (self._rest + chunk).split(b"\0")
        for text in whole:
            self._heard(json.loads(text))

    def _heard(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._replies[message["id"]] = message
            return
        about = message.get("params", {})
        match message["method"]:
            case "Runtime.exceptionThrown":
                self.errors.append(str(about["exceptionDetails"].get("exception", about)))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.errors.append(str(about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] == "error":
                self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.asked.append(about["request"]["url"])

    def close(self) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self._send("Browser.close")
        end = time.monotonic() + SECONDS
        while os.waitpid(self._process, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.killpg(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)
                break
            time.sleep(0.05)
        os.close(self._in)
        os.close(self._out)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser; the test is skipped where none is installed."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser is installed: none of {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        opened = Browser(program, folder)
        try:
            yield opened
        finally:
            opened.close()
