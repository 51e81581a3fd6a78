"""Takes the pictures of docs/admin-page.md: `python docs/images/page.py`, after `make page`, where Chromium is.

A real gateway denies, holds and lets through requests of this machine. Only the hour of the first picture is made up: a
script has none. Nothing leaves the machine.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.clients.test_admin_page import DESKTOP, World  # noqa: E402
from tests.e2e.world import Origin, client, get  # noqa: E402
from tests.support.chromium import Chromium  # noqa: E402
from tests.support.name_server import NameServer  # noqa: E402

HERE: Final = Path(__file__).parent
DENIED: Final = {"paste.example": 7, "files.pythonhosted.org": 4, "registry.npmjs.org": 2, "telemetry.example": 1}


def hour() -> str:
    """An answer of /history."""
    start = time.time() // 60 * 60 - 59 * 60
    minutes = []
    for at in range(60):
        wave = 1 + 0.4 * math.sin(at / 9) + 0.15 * math.sin(at * 1.7)
        late = 6 if 38 <= at <= 41 else 1
        minutes.append({
            "time": start + 60 * at, "requests": round(120 * wave), "denials": round(9 * wave) if at % 7 < 3 else 2,
            "failures": 11 * (late > 1), "p50_ms": 38 * wave, "p95_ms": 110 * wave * late,
            "tokens": round(21_000 * wave), "cost": 0.11 * wave,
        })  # fmt: skip
    return json.dumps({"minutes": minutes})


async def take(world: World, program: str, folder: Path) -> None:
    async with Chromium(program, folder) as browser:

        async def picture(name: str, view: str, size: tuple[int, int], *, dark: bool = False) -> None:
            await browser.look(*size, dark=dark)
            await browser.run(f"location.hash = '#/{view}'")
            await browser.until("!document.querySelector('main').innerText.includes('Loading')")
            if name == "page-denials":
                await browser.press("paste.example")
                await browser.press("Show the change")
            await asyncio.sleep(0.5)  # pictures are drawn
            await browser.run("document.activeElement.blur(); scrollTo(0, 0)")
            (HERE / f"{name}.png").write_bytes(await browser.picture())

        await browser.look(*DESKTOP)
        answer = f"path.startsWith('history') ? Promise.resolve(new Response({json.dumps(hour())})) : real(path, init)"
        script = f"const real = window.fetch; window.fetch = (path, init) => {answer}"
        await browser.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        await browser.open(f"{world.url}/ui")
        for host, count in DENIED.items():
            for _ in range(count):
                world.status(host)
        await picture("page-hour", "hour", (1100, 600))
        await picture("page-denials", "denials", (1100, 760))
        with client(world.port) as first, client(world.port) as second:
            first.sendall(get("origin.test", world.origin.port, "/v1/payments"))
            second.sendall(get("origin.test", world.origin.port, "/v1/refunds"))
            await asyncio.sleep(1)
            await picture("page-phone", "holds", (360, 560), dark=True)


def main() -> None:
    program = shutil.which("chromium")
    assert program, "chromium is not here (on Debian: apt-get install chromium)"
    with (
        tempfile.TemporaryDirectory() as name,
        NameServer({"*": ["127.0.0.1"]}) as dns,
        Origin() as origin,
        World(Path(name), origin, dns.address) as world,
    ):
        world.write()
        asyncio.run(take(world, program, Path(name) / "chromium"))


if __name__ == "__main__":
    main()
