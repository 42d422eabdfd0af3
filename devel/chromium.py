"""A browser for tests: Debian's chromium, driven through a pipe by the protocol of its
developer tools (https://chromedevtools.github.io/devtools-protocol/)."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# For something that never comes.
_SECONDS = 60


def program() -> str | None:
    """The browser's path; None where there is none."""
    return os.environ.get("KILN_CHROMIUM") or shutil.which("chromium")


@dataclass
class Page:
    """A page and what it did: `errors` of its console, `requests` that it made."""

    browser: Browser
    session: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    loaded: int = 0

    def call(self, method: str, **parameters: Any) -> Any:
        """A command to this page."""
        return self.browser.call(method, parameters, self.session)

    def open(self, url: str) -> None:
        """Go there, and wait until it is loaded."""
        # By way of an empty page: from one place of a page to another nothing would be loaded.
        for place in ("about:blank", url):
            before = self.loaded
            self.requests.clear()
            self.call("Page.navigate", url=place)
            self.browser.read_until(lambda before=before: self.loaded > before)

    def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True,
            userGesture=True,
        )  # fmt: skip
        if "exceptionDetails" in answer:
            raise AssertionError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def type_in(self, selector: str, text: str) -> None:
        """Replace a field's text as a person does, by keys."""
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def looks(self, width: int, scheme: str = "light") -> None:
        """A window's width and the color scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )


class Browser:
    """A process of chromium; messages end with a zero byte."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, out: int) -> None:
        self._process, self._to, self._out = process, to, out
        self._buffer, self._number = b"", 0
        self._answers: dict[int, Any] = {}
        self._pages: dict[str, Page] = {}

    def page(self) -> Page:
        """A new page."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = self._pages[session["sessionId"]] = Page(self, session["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        return page

    def call(self, method: str, parameters: Any = None, session: str | None = None) -> Any:
        """A command's answer."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        self.read_until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def read_until(self, done: Any) -> None:
        """Read messages until it is done."""
        while not done():
            ready, _, _ = select.select([self._out], [], [], _SECONDS)
            read = os.read(self._out, 1 << 20) if ready else b""
            if not read:
                ended = self._process.poll()
                raise AssertionError(f"the browser said nothing (it has ended with {ended})")
            *whole, self._buffer = (self._buffer + read).split(b"\0")
            for text in whole:
                self._heard(json.loads(text))

    def _heard(self, message: Any) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        page = self._pages.get(message.get("sessionId", ""))
        if page is None:
            return
        method, params = message["method"], message["params"]
        if method == "Page.loadEventFired":
            page.loaded += 1
        elif method == "Network.requestWillBeSent":
            page.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            page.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            page.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            page.errors.append(json.dumps(params["args"])[:500])


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """A browser of its own, without a window, ended at the end."""
    read_there, to = os.pipe()
    out, write_there = os.pipe()
    with tempfile.TemporaryDirectory(prefix="kiln-chromium-", ignore_cleanup_errors=True) as home:

        def as_it_wants() -> None:
            os.dup2(read_there, 103)
            os.dup2(write_there, 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        words += ["--no-first-run", "--disable-extensions", "--disable-background-networking"]
        process = subprocess.Popen(
            [path, *words, "--remote-debugging-pipe", f"--user-data-dir={home}"],
            preexec_fn=as_it_wants,  # noqa: PLW1509 - before any thread of the test
            close_fds=False, cwd=home, env={**os.environ, "HOME": home},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_there)
        os.close(write_there)
        try:
            yield Browser(process, to, out)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(to)
            os.close(out)
