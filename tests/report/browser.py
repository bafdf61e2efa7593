"""Headless Chromium over the pipe of its DevTools protocol (https://chromedevtools.github.io/devtools-protocol)."""

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self


def find_chromium() -> str | None:
    """The program; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page at a time. ``complaints`` are the console's errors and warnings and what was thrown, ``requests`` the
    URLs that the page asked for, its own included."""

    def __init__(self, program: str) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._ids = itertools.count(1)
        self._rest = b""
        self._events: list[dict[str, Any]] = []
        self._home = tempfile.mkdtemp()
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Above 3 and 4, which it reads from and writes to.
        ours = [theirs_in, theirs_out]
        theirs_in, theirs_out = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in ours)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        arguments += ["--disable-dev-shm-usage", f"--user-data-dir={self._home}", "about:blank"]
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *arguments],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": self._home},
        )
        for each in (*ours, theirs_in, theirs_out):
            os.close(each)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._call("Browser.close")
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._in)
            os.close(self._out)
            shutil.rmtree(self._home, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, self._session, **parameters)

    def _call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        data = json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._in, 1 << 20)
            assert data, "chromium has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        what, told = event.get("method"), event.get("params", {})
        if what == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif what == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif what == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(told["args"]))
        elif what == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """The size of the window, and light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, file: Path, fragment: str = "") -> None:
        """Open a file and wait until it is drawn."""
        self._events.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=file.as_uri() + fragment)
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._note(self._read())
        self.drawn()

    def drawn(self) -> None:
        """Wait for two frames: the first may be the one that is being drawn."""
        self.run(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"
        )

    def run(self, script: str) -> Any:
        """The value of an expression."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def picture(self, file: Path, *, whole: bool = True) -> None:
        """A PNG of the page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))
