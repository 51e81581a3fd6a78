"""A processor that is a script: what it was asked, and what it says to that. No network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

from egressproxy.envoy.ext_proc.messages import MessagePart, ProcessingRequest, ProcessingResponse
from egressproxy.envoy.ext_proc.wire import read_request, response_bytes
from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.errors import Reason
from egressproxy.filters.calls import CallFailed, StreamReceiver
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain
from egressproxy.filters.instances import FilterInstances
from egressproxy.filters.testing import FilterHarness
from egressproxy.ir.policy import BACKEND_LEVEL, Callee, ExtensionIR
from egressproxy.telemetry.event_aggregator import EventAggregator
from egressproxy.telemetry.filter_meter import FilterMetrics

TYPE = "egressproxy.io/ExternalProcessor:v1"
REF = {"group": "egressproxy.io", "kind": "Backend", "name": "processor"}

#: What a script says to a message: responses (or bytes that are none), an end (None), a failure, or nothing.
Said = ProcessingResponse | bytes | CallFailed | None
Script = Callable[[ProcessingRequest], Iterable[Said]]


def changes(*pairs: tuple[str, str]) -> tuple[FieldChange, ...]:
    return tuple(FieldChange(name.encode(), FieldAction.SET, value.encode()) for name, value in pairs)


def broke() -> CallFailed:
    return CallFailed(Reason.UPSTREAM_RESET, "backend agents/processor could not be asked: the stream was reset")


class FakeStream:
    """One stream: implements MessageStream. What the script says comes in the next turn of the loop."""

    def __init__(self, script: Script, receiver: StreamReceiver) -> None:
        self.script = script
        self.receiver = receiver
        self.asked: list[ProcessingRequest] = []
        self.unsent_bytes = 0
        self.is_paused = False
        self.end_s: float | None = None
        self.is_closed = False

    @property
    def parts(self) -> list[str]:
        return [each.part.value for each in self.asked]

    def send(self, message: bytes) -> None:
        if self.is_closed or self.end_s is not None:
            return
        request = read_request(message)
        self.asked.append(request)
        asyncio.get_running_loop().call_soon(self._say, list(self.script(request)))

    def say(self, *said: Said) -> None:
        self._say(list(said))

    def _say(self, said: list[Said]) -> None:
        for each in said:
            if self.is_closed or self.end_s is not None:
                return
            if isinstance(each, ProcessingResponse):
                self.receiver.message_came(response_bytes(each))
            elif isinstance(each, bytes):
                self.receiver.message_came(each)
            else:
                self.receiver.stream_ended(each)

    async def drained(self) -> None:
        await asyncio.sleep(0)

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def end(self, linger_s: float) -> None:
        if not self.is_closed and self.end_s is None:
            self.end_s = linger_s

    def close(self) -> None:
        self.is_closed = True


class FakeCall:
    """The backend: implements FilterCall."""

    backend = "agents/processor"

    def __init__(self, script: Script) -> None:
        self.script = script
        self.streams: list[FakeStream] = []

    def open_stream(self, path: bytes, receiver: StreamReceiver, fields: Any = (), **more: Any) -> FakeStream:
        assert path == b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
        self.metadata = tuple(fields)
        stream = FakeStream(self.script, receiver)
        self.streams.append(stream)
        return stream

    async def request(self, *args: Any, **more: Any) -> Any:
        raise AssertionError("this backend is asked by streams")


class Processed(FilterHarness):
    """The filter with its processor; `call.streams` are its streams."""

    def __init__(
        self, script: Script, *, phase: str = "request-headers", fail_open: bool = False, timeout_s: float = 5.0,
        **config: Any,
    ) -> None:  # fmt: skip
        config = {"backendRefs": [REF], **config}
        super().__init__(config, phase=phase, type=TYPE, fail_open=fail_open, timeout_s=timeout_s)
        self.call = FakeCall(script)
        spec = ExtensionIR(
            "test", TYPE, phase, fail_open=fail_open, timeout_s=timeout_s, config=json.dumps(config),
            level=BACKEND_LEVEL if phase == "backend-request" else 0,
            scope="Gateway test/gateway", source="EgressPolicy test/policy",
            calls=(("Backend processor", Callee()),),
        )  # fmt: skip
        self._notices = EventAggregator()
        self.metrics = FilterMetrics()
        instances = FilterInstances(
            Catalog(),
            notices=self._notices,
            reach=lambda _name, _callee: self.call,  # type: ignore[arg-type,return-value]
            metrics=self.metrics,
        )
        self._chain = compile_chain([spec], instances.place)
        self.filter = instances.place(spec).filter

    @property
    def stream(self) -> FakeStream:
        (stream,) = self.call.streams
        return stream


def agrees(request: ProcessingRequest) -> list[Said]:
    """Nothing is changed."""
    return [ProcessingResponse(request.part)]


def at(part: MessagePart, *said: Said) -> Script:
    """Says this to messages of this part, and agrees with all others."""
    return lambda request: list(said) if request.part is part else agrees(request)


def silent_at(part: MessagePart) -> Script:
    """Agrees until it is asked for this part: it says nothing then, and an hour passes on the clock of the loop."""

    def script(request: ProcessingRequest) -> list[Said]:
        if request.part is not part:
            return agrees(request)
        loop = asyncio.get_running_loop()
        before = loop.time
        loop.call_soon(lambda: setattr(loop, "time", lambda: before() + 3600))
        return []

    return script


def answer(part: MessagePart, **more: Any) -> ProcessingResponse:
    return ProcessingResponse(part, **more)
