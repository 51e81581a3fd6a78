"""The latest configurations, and what they have changed."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

from egressproxy.config.reading.load import read_all
from egressproxy.processes import configuration_log
from egressproxy.processes.configuration_log import KEPT, MAX_PROBLEMS, ConfigurationLog
from egressproxy.processes.loader import differences
from egressproxy.processes.loader.compilation import compiled
from egressproxy.processes.loader.process import LoadingFailed
from egressproxy.processes.packing import pack
from egressproxy.processes.pickling import dumps
from tests.support import manifests as m


class Loader:
    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked: list[tuple[bytes, bytes]] = []

    async def differences(self, before: bytes, after: bytes) -> str:
        self.asked.append((before, after))
        await self.go.wait()
        if after == b"bad":
            raise LoadingFailed("no")
        return "+ it"


async def test_each_has_its_difference_once_it_is_known():
    loader: Any = Loader()
    kept = ConfigurationLog(loader)
    kept.in_service(1, "start", 3, (b"", b"a"))
    kept.in_service(2, "files", 4, (b"a", b"b"))
    kept.in_service(3, "SIGHUP", 4, (b"b", b"b"))
    kept.in_service(4, "API", 5, (b"b", b"bad"))
    kept.in_service(5, "API", 5, (b"x" * configuration_log.MAX_COMPARED, b"c"))
    kept.rejected(5, "files", [f"{number}" * 600 for number in range(MAX_PROBLEMS + 9)])
    await asyncio.sleep(0)
    loader.go.set()
    while kept._comparing:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0)
    told = kept.told()
    assert [each["diff"] for each in told] == [None, None, None, "", "+ it", None]
    assert [(each["number"], each["result"], each["by"]) for each in told[:2]] == [
        (5, "rejected", "files"), (5, "in service", "API"),
    ]  # fmt: skip
    assert (len(told[0]["problems"]), told[0]["problems"][-1]) == (MAX_PROBLEMS + 1, "… and 9 more")
    assert max(map(len, told[0]["problems"])) == configuration_log.MAX_PROBLEM
    assert loader.asked == [(b"a", b"b"), (b"b", b"bad")]


async def test_it_is_bounded():
    loader: Any = Loader()
    kept = ConfigurationLog(loader)
    for number in range(KEPT + 5):
        kept.in_service(number, "files", 1, (b"a", b"%d" % number))
    await asyncio.sleep(0)
    assert (len(kept.told()), kept.told()[0]["number"]) == (KEPT, KEPT + 4)
    assert len(loader.asked) == configuration_log.MAX_WAITING
    loader.go.set()
    while kept._comparing:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0)


def spec(folder: Path, hostnames: int, **more: Any) -> bytes:
    allowed = [f"host-{number}.example" for number in range(hostnames)]
    m.write(folder / "all.yaml", [m.gateway(m.forward_listener(3128)), m.policy(allowed, **more)])
    return zlib.compress(pack(compiled(read_all([folder]), ("127.0.0.1",)).spec), 1)


def test_the_text_is_that_of_diff_without_secrets_and_bounded(tmp_path: Path):
    value = {"request": {"set": [{"name": "X-Key", "value": "hush"}]}}
    filters = [{"name": "f", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers", "config": value}]
    before = spec(tmp_path, 1)
    text = differences.answer(dumps((before, spec(tmp_path, 2, extensions=filters)))).decode()
    assert text.splitlines()[0] == "~ Listener agents/gw/forward"
    assert "host-1.example" in text
    assert "hush" not in text
    assert differences.answer(dumps((before, before))) == b""
    text = differences.answer(dumps((before, spec(tmp_path, 9000)))).decode()
    assert len(text) <= differences.MAX_TEXT
    assert text.endswith("… and more")
