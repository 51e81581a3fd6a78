"""OpenAI's realtime API: its own SDK, behind filters that see each event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess

pytest.importorskip("openai")
pytest.importorskip("websockets")

from openai import OpenAI
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosedError

from tests.clients.test_responses_websocket import LIMIT, MAIL, METER, MODELS, PII, TOOLS, ResponsesServer


class RealtimeServer(ResponsesServer):
    """A provider of realtime sessions: it repeats the latest item, in text."""

    async def _talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        session = {"type": "realtime", "id": "sess", "model": connection.request.path.partition("=")[2]}
        await connection.send(json.dumps({"type": "session.created", "event_id": "s0", "session": session}))
        said = ""
        async for message in connection:
            event = json.loads(message)
            self.requests.append(event)
            if event["type"] == "conversation.item.create":
                said = event["item"]["content"][0]["text"]
            for answer in answers_to(event, said):
                await connection.send(json.dumps({"event_id": "s1", **answer}))


def answers_to(event: dict[str, Any], said: str) -> Iterator[dict[str, Any]]:
    if event["type"] == "session.update":
        yield {"type": "session.updated", "session": event["session"]}
    elif event["type"] == "conversation.item.create":
        yield {"type": "conversation.item.added", "item": {**event["item"], "id": "u"}, "previous_item_id": None}
    elif event["type"] == "response.create":
        response = {"object": "realtime.response", "id": "r", "status": "in_progress", "output": []}
        where = {"response_id": "r", "item_id": "a", "output_index": 0, "content_index": 0}
        usage = {"input_tokens": 20, "output_tokens": 10, "total_tokens": 30}
        item = {"id": "a", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}
        yield {"type": "response.created", "response": response}
        yield {"type": "response.content_part.added", **where, "part": {"type": "text", "text": ""}}
        for piece in (said[:8], said[8:]):
            yield {"type": "response.output_text.delta", "delta": piece, **where}
        yield {"type": "response.output_text.done", "text": said, **where}
        yield {"type": "conversation.item.done", "item": item}
        yield {"type": "response.done", "response": {
            **response, "status": "completed", "output": [item], "usage": usage,
        }}  # fmt: skip


@pytest.fixture
def provider() -> Iterator[RealtimeServer]:
    made = RealtimeServer()
    yield made
    made.close()


def test_the_sdk_of_openai_talks_in_text_through_every_filter(tmp_path: Path, provider: RealtimeServer):
    port = free_port()
    objects = [
        m.gateway(m.http_listener(port)),
        m.policy(cidrs=["127.0.0.0/8"], extensions=[PII, MODELS, TOOLS, METER, LIMIT]),
        m.ip_backend("provider", provider.port),
        m.http_route("route", m.prefix_rule("/", "provider")),
    ]
    client = OpenAI(api_key="unused", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)
    tools: Any = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "shell")]
    part: Any = {"type": "input_text", "text": f"mail {MAIL} now"}
    with GatewayProcess(tmp_path, objects) as process:
        with client.realtime.connect(model="gpt-realtime") as connection:
            connection.session.update(session={"type": "realtime", "output_modalities": ["text"], "tools": tools})
            connection.conversation.item.create(item={"type": "message", "role": "user", "content": [part]})
            ended: list[Any] = []
            for _ in range(3):
                connection.response.create()
                events: list[Any] = []
                for event in connection:
                    events.append(event)
                    if event.type in ("response.done", "error"):
                        break
                ended.append(events)
            texts = ["".join(each.delta for each in of if each.type == "response.output_text.delta") for of in ended]
            assert texts == [f"mail {MAIL} now"] * 2 + [""]
            assert ended[0][0].type == "session.created"
            done = ended[0][-1].response
            assert (done.usage.total_tokens, done.output[0].content[0].text) == (30, f"mail {MAIL} now")
            assert (ended[2][-1].type, ended[2][-1].error.code) == ("error", "token_rate")
            connection.input_audio_buffer.append(audio="AAAA")
            with pytest.raises(ConnectionClosedError, match="1008"):
                list(connection)
        update, item = provider.requests[:2]
        assert [each["name"] for each in update["session"]["tools"]] == ["look"]
        assert item["item"]["content"][0]["text"] == "mail <EMAIL_1> now"
        assert [each["type"] for each in provider.requests[2:]] == ["response.create"] * 2
        with client.realtime.connect(model="gpt-dearest") as connection:
            connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
            refused: Any = next(event for event in connection if event.type == "error")
            assert refused.error.code == "model_denied"
        assert len(provider.requests) == 4
        assert process.metric("egress_ai_tokens_total", kind="output") >= 20
