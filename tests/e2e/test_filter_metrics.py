"""Metrics that a filter keeps of its own, in a gateway of two processes: /metrics shows them as one."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.world import ask, client
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until

#: Answers with the number of its process, and counts what the request says.
COUNTING = """
import os
from egressproxy.filters import Filter
from egressproxy.model.local_response import LocalResponse

class Counting(Filter):
    def __init__(self, context):
        meter = context.meter
        self.seen = meter.counter("acme_seen", "Requests.", ("kind",))
        self.sizes = meter.histogram("acme_sizes", "What they say.", (1.0, 10.0))
        self.gauges = [meter.gauge(f"acme_{how}", "The last of them.", combined=how) for how in ("sum", "max", "min")]

    def request_headers(self, x):
        said = float(x.request.fields.get(b"x-said"))
        self.seen.add(2, "odd" if said % 2 else "even")
        self.sizes.observe(said)
        for gauge in self.gauges:
            gauge.set(said)
        return LocalResponse(200, (), b"%d" % os.getpid())
"""


def test_counters_and_histograms_are_added_up_and_gauges_as_they_say(tmp_path: Path):
    port = free_port()
    mine: m.Manifest = {"name": "mine", "type": "egressproxy.io/Python:v1", "phase": "request-headers"}
    mine["config"] = {"path": "counting.py"}
    objects = [m.gateway(m.forward_listener(port)), m.policy(("*.test",), extensions=[mine])]
    gateway = GatewayProcess(tmp_path, objects, arguments=["--workers", "2"])
    (gateway.config / "counting.py").write_text(COUNTING)
    last: dict[int, float] = {}
    all_said: list[float] = []
    with gateway, ExitStack() as stack:

        def say(number: float) -> None:
            sock = stack.enter_context(client(port))
            head = f"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nX-Said: {number}\r\n\r\n"
            status, body = ask(sock, head.encode())
            assert status == 200
            last[int(body)] = number
            all_said.append(number)

        def shown(how: str) -> float:
            return gateway.metric(f"acme_{how}", filter="mine")

        while len(last) < 2 or last[min(last)] == last[max(last)]:
            assert len(all_said) < 200, "one worker alone serves"
            say(len(all_said) + 1)
        odd = sum(number % 2 for number in all_said)
        assert gateway.metric("acme_seen_total", filter="mine", kind="odd") == 2 * odd
        assert gateway.metric("acme_seen_total", filter="mine") == 2 * len(all_said)
        assert gateway.metric("acme_sizes_count", filter="mine") == len(all_said)
        assert gateway.metric("acme_sizes_sum", filter="mine") == sum(all_said)
        assert gateway.metric("acme_sizes_bucket", filter="mine", le="1.0") == 1
        assert (shown("sum"), shown("max"), shown("min")) == (sum(last.values()), *sorted(last.values(), reverse=True))

        gone, left = last
        os.kill(gone, signal.SIGKILL)
        wait_until(lambda: gateway.metric("egress_worker_restarts_total") == 1)
        wait_until(lambda: (shown("sum"), shown("max"), shown("min")) == (last[left],) * 3)
        assert gateway.metric("acme_seen_total", filter="mine") == 2 * len(all_said), "what was counted stays"
