"""A question that is given up while its socket is being opened leaves no descriptor."""

from __future__ import annotations

import asyncio
import gc
import os
import socket

import dns.name
import dns.rdatatype
import pytest

from egressproxy.net.loop import new_loop
from egressproxy.upstream.dns_client import DnsClient
from egressproxy.upstream.dns_server import Server


@pytest.mark.parametrize("turns", range(1, 8))
def test_a_question_given_up_leaves_no_descriptor(turns: int):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        server = Server("127.0.0.1", silent.getsockname()[1], "udp", "127.0.0.1")
        name = dns.name.from_text("a.example.").to_wire()

        async def give_up() -> int:
            before = len(os.listdir("/proc/self/fd"))
            asking = [asyncio.create_task(DnsClient().ask([server], name, dns.rdatatype.A, 5.0)) for _ in range(20)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            for _ in range(20):
                await asyncio.sleep(0)
            return len(os.listdir("/proc/self/fd")) - before

        gc.collect()  # loops of other tests
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.sleep(0))
            assert runner.run(give_up()) == 0
