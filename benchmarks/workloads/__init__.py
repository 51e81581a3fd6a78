"""The workloads by name: what is asked of a proxy, by which generator, and how the answer is checked beforehand."""

from __future__ import annotations

from benchmarks.workloads.base import Workload
from benchmarks.workloads.calls import Calls
from benchmarks.workloads.events import Events
from benchmarks.workloads.idle import IdleMemory
from benchmarks.workloads.opened import OpenedTunnels
from benchmarks.workloads.requests import AiCalls, Forward, Http2Reverse, LlmGateway, Reverse
from benchmarks.workloads.scale import MoreClients, MoreRoutes, MoreTraces, MoreWorkers
from benchmarks.workloads.tunnels import Connects, IdleTunnels, Transfers

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Forward("W1", "forward, absolute-form GET, 1 KiB, keep-alive, 12 and 15 fields"),
        Forward("W1u", "the same as W1 with ids of their own in every request and every answer", "/unique"),
        Forward("W1s", "the same as W1 with 2 request and 5 response fields", "/small"),
        Reverse("W2", "reverse, plain client, TLS to the upstream, pooled, credential"),
        Connects(),
        Transfers(),
        Events(),
        IdleTunnels(),
        IdleMemory(),
        Http2Reverse(
            "W7", "reverse, HTTP/2 client (8 connections, 32 streams each), TLS to an HTTP/1 upstream, credential"
        ),
        Calls("W8", "gRPC: as W7, unary calls of 64 bytes each way, and HTTP/2 to the upstream"),
        OpenedTunnels(),
        MoreRoutes(),
        MoreWorkers(),
        MoreClients(),
        MoreTraces("S4", 100),
        MoreTraces("S5", 1),
        LlmGateway("Lp", "the work of W2 as a pass-through of an LLM gateway"),
        AiCalls("L", "calls of a language model with a key that is put in, a quota of tokens, and redaction"),
    )
}
