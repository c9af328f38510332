"""Headless Chromium: what people see of a page, through Chromium's DevTools protocol."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

COMMAND = (
    shutil.which("chromium") or "chromium",
    "--hide-scrollbars",
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_LIMIT = 30.0  # seconds for a page to show something, on a busy machine
# The middle of an element, once nothing else is there.
_PLACE = """found && (() => {
    found.scrollIntoView({block: 'nearest'});
    const box = found.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    return found.contains(document.elementFromPoint(x, y)) && {x, y};
})()"""


class Page:
    """A page in a window, which may load what it shows by itself."""

    def __init__(self, connection: ClientConnection) -> None:
        """Uses the DevTools of the page at the other end."""
        self._connection = connection
        self._calls = 0

    def open(self, url: str, *shown: str) -> str:
        """The text of the page at a URL, once all of `shown` is there."""
        self._call("Page.navigate", url=url)
        return self.wait_for(*shown)

    def wait_for(self, *shown: str) -> str:
        """As `open`, of the page as it is."""
        return self.wait_for_patterns(*map(re.escape, shown))

    def wait_for_patterns(self, *patterns: str, limit: float = _LIMIT) -> str:
        """As `wait_for`, for regular expressions; ``^`` and ``$`` match at lines.

        The text is the one that had all of them: a page may be redrawn at any time.
        """
        deadline = time.monotonic() + limit
        while True:
            text = self.text
            missing = [pattern for pattern in patterns if not re.search(pattern, text, re.MULTILINE)]
            if not missing:
                return text
            assert time.monotonic() < deadline, f"{missing} is not on the page:\n{text}"
            time.sleep(0.1)

    @property
    def text(self) -> str:
        return str(self._evaluate("document.body?.innerText ?? ''"))

    def click(self, text: str, *patterns: str) -> str:
        """Clicks the innermost element with exactly this text until all regular expressions are on the page.

        Returns the page's text then. A page that is redrawn between the look and the click loses the click.
        """
        place = self._of_element(text, _PLACE)
        for _ in range(6):
            while place != (place := self._evaluate(_script(text, _PLACE))):
                pass  # it moves
            for event in ("mousePressed", "mouseReleased") if place else ():
                self._call("Input.dispatchMouseEvent", type=event, button="left", clickCount=1, **place)
            with suppress(AssertionError):
                return self.wait_for_patterns(*patterns, limit=_LIMIT / 6)
        return self.wait_for_patterns(*patterns)

    def resize(self, width: int, height: int) -> None:
        """Gives the page a size in pixels, which may be less than that of a window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def forbid_scripts(self) -> None:
        """Pages that are opened from now on run no script."""
        self._call("Emulation.setScriptExecutionDisabled", value=True)

    @property
    def height(self) -> int:
        """Of all of the page, in pixels; of one that is wider than the window, nothing."""
        fits = "document.documentElement.scrollWidth <= innerWidth"
        assert self._evaluate(fits), "the page scrolls sideways"
        return int(self._evaluate("document.documentElement.scrollHeight"))

    def shows(self, selector: str) -> bool:
        """Whether an element is visible."""
        return bool(self._evaluate(f"document.querySelector({json.dumps(selector)}).checkVisibility()"))

    def set(self, selector: str, value: str) -> None:
        """Gives a field of a form a value, as a person would."""
        field = f"document.querySelector({json.dumps(selector)})"
        self._evaluate(f"{field}.value = {json.dumps(value)}")
        self._evaluate(f"{field}.dispatchEvent(new Event('input', {{bubbles: true}}))")

    def type(self, text: str) -> None:
        """Types text where the focus is."""
        self._call("Input.insertText", text=text)

    def press(self, key: str, times: int = 1) -> None:
        """Presses a key: a letter, ``Tab`` or ``Enter``."""
        code = {"Tab": 9, "Enter": 13}.get(key, ord(key[0]))
        text = {"Tab": "", "Enter": "\r"}.get(key, key)
        for _ in range(times):
            self._call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
            self._call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def link(self, text: str) -> str:
        """The URL that the link with exactly this text leads to, once there is one."""
        return str(self._of_element(text, "found?.closest('a')?.href"))

    def _of_element(self, text: str, script: str) -> Any:
        """What a script says of `found`, the innermost element with this text: the page may be redrawn at any time."""
        deadline = time.monotonic() + _LIMIT
        while not (value := self._evaluate(_script(text, script))):
            assert time.monotonic() < deadline, f"{text!r} is not on the page:\n{self.text}"
            time.sleep(0.1)
        return value

    def picture(self, path: Path) -> None:
        """Writes what the window shows as a PNG file."""
        path.write_bytes(b64decode(self._call("Page.captureScreenshot")["data"]))

    def _evaluate(self, script: str) -> Any:
        return self._call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._calls += 1
        self._connection.send(json.dumps({"id": self._calls, "method": method, "params": params}))
        while (answer := json.loads(self._connection.recv(_LIMIT))).get("id") != self._calls:
            pass  # an event
        return dict(answer["result"])


def _script(text: str, script: str) -> str:
    shows = f"(element) => element.innerText?.trim() === {json.dumps(text)}"
    return f"((found) => {script})([...document.querySelectorAll('body *')].findLast({shows}))"


@contextmanager
def open_page(folder: Path, size: str = "1280,1000") -> Iterator[Page]:
    """An empty page of a browser that keeps its profile in the folder and ends with the context.

    `size` is the window's, in pixels; 143 of its height are not the page's.
    """
    command = [*COMMAND, f"--user-data-dir={folder / 'profile'}", f"--window-size={size}", "--remote-debugging-port=0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        try:
            with connect(_debugger(folder / "profile" / "DevToolsActivePort"), max_size=None) as connection:
                yield Page(connection)
        finally:
            browser.terminate()


def _debugger(file: Path) -> str:
    """URL of the first page's DevTools, once the browser has written where they are."""
    deadline = time.monotonic() + _LIMIT
    while not (file.exists() and (lines := file.read_text().splitlines())):
        assert time.monotonic() < deadline, "Chromium does not start"
        time.sleep(0.1)
    with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=10) as listed:
        return str(next(tab["webSocketDebuggerUrl"] for tab in json.load(listed) if tab["type"] == "page"))
