"""Chromium: Debian's browser without a window, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from tests.support.waiting import WAIT_S, until

#: Of JSON-RPC, which the protocol follows. Here the page has gone to another one meanwhile.
SERVER_ERROR = -32000


class PageLeft(AssertionError):
    """The page was left before it answered."""


class Chromium:
    """One browser with one page. `errors`: what its console and its policies have complained of."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.errors: list[str] = []

    async def __aenter__(self) -> Chromium:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        options += ["--remote-debugging-port=0", f"--user-data-dir={self._folder}", "--disable-background-networking"]
        self._process = await asyncio.create_subprocess_exec(
            self._program, *options, "about:blank", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._session = aiohttp.ClientSession()
        await until(self._port, "Chromium has not opened its port")
        async with self._session.get(f"http://127.0.0.1:{self._port()}/json/list") as answer:
            [page] = [each for each in await answer.json(content_type=None) if each["type"] == "page"]
        self._socket = await self._session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
        self._reading = asyncio.create_task(self._read())
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.cancel()
        await self._session.close()
        self._process.terminate()
        await asyncio.wait_for(self._process.wait(), WAIT_S)

    def _port(self) -> str:
        with suppress(OSError):
            return (self._folder / "DevToolsActivePort").read_text().partition("\n")[0]
        return ""

    async def _read(self) -> None:
        async for message in self._socket:
            got = json.loads(message.data)
            if "id" in got:
                self._answers.pop(got["id"]).set_result(got)
            elif got["method"] == "Runtime.exceptionThrown":
                self.errors.append(got["params"]["exceptionDetails"].get("exception", {}).get("description", str(got)))
            elif got["method"] == "Log.entryAdded":
                entry = got["params"]["entry"]
                self.errors.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        answer = await asyncio.wait_for(self._answers[number], WAIT_S)
        if answer.get("error", {}).get("code") == SERVER_ERROR:
            raise PageLeft(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited, in the page. Its Content-Security-Policy does not hold for it."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Return once an expression is true in the page."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not await self._is_true(script):  # noqa: ASYNC110   it cannot tell
                    await asyncio.sleep(0.03)
        except TimeoutError:
            text = await self.run("document.body.innerText")
            raise AssertionError(f"never true: {script}\n{text}\n{self.errors}") from None

    async def _is_true(self, script: str) -> bool:
        try:
            return bool(await self.run(f"!!({script})"))
        except PageLeft:
            return False  # the next page may have it

    async def shows(self, text: str) -> None:
        """Wait until the page shows this text."""
        await self.until(f"document.body?.innerText.includes({json.dumps(text)})")

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    async def press(self, name: str) -> None:
        """Click the button, link, or summary whose text begins so."""
        every = "[...document.querySelectorAll('button, a, summary')]"
        await self.until(f"{every}.some((each) => each.innerText.trim().startsWith({json.dumps(name)}))")
        await self.run(f"{every}.find((each) => each.innerText.trim().startsWith({json.dumps(name)})).click()")

    async def press_twice(self, name: str) -> None:
        """Press a button that asks for a second press, which is no double click."""
        await self.press(name)
        await asyncio.sleep(0.5)
        await self.press(f"{name}: press again")

    async def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window, and whether its user likes it dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    async def complaints(self, axe: str) -> Mapping[str, list[str]]:
        """What axe-core (its script) finds to be hard to use in the page, by rule."""
        if not await self.run("'axe' in window"):
            await self.run(f"{axe}; true")
        found = await self.run("axe.run().then((each) => JSON.stringify(each.violations))")
        return {
            each["id"]: [f"{node['html']} {node['failureSummary']}" for node in each["nodes"]]
            for each in json.loads(found)
        }
