"""What a process that serves says when it is asked."""

from __future__ import annotations

import asyncio
import json

import pytest

from egressproxy.gateway.builders.snapshot_builder import offline
from egressproxy.processes.workers.worker import Worker
from egressproxy.telemetry.metrics import Metrics
from tests.gateway.kit import forward
from tests.support.conversation import compiled_spec


@pytest.mark.parametrize(("via", "reason"), [("us", "loop_detected"), ("others", "destination_not_allowed")])
@pytest.mark.parametrize(("method", "url"), [("GET", "http://b.example/"), ("CONNECT", "b.example:443")])
def test_explain_knows_the_name_in_via_of_the_gateway(method: str, url: str, via: str, reason: str):
    async def explained() -> bytes:
        worker = Worker("off", Metrics("0"), b"us")
        worker.gateway.snapshot = offline(compiled_spec(forward()))
        try:
            pairs = (("method", method), ("url", url), ("header", f"Via: 1.1 {via}"), ("dns", "off"))
            found: bytes = await worker.answer("explain", (pairs,))
        finally:
            worker.close()
        return found

    assert json.loads(asyncio.run(explained()))["error"]["reason"] == reason
