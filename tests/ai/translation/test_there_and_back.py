"""Answers and streams that go through two translations say what they said."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.anthropic import answers as anthropic_answers
from egressproxy.ai.translation.anthropic.streams import MessageStreamReader, MessageStreamWriter
from egressproxy.ai.translation.conversation import (
    Delta,
    Finished,
    KeepAlive,
    ModelAnswer,
    PartEnded,
    PartKind,
    PartStarted,
    Started,
    Stop,
    StreamEvent,
    Text,
    ToolCall,
    Usage,
)
from egressproxy.ai.translation.event_stream import COMMENT, EventStream
from egressproxy.ai.translation.openai_chat import answers as chat_answers
from egressproxy.ai.translation.openai_chat.streams import ChatStreamReader, ChatStreamWriter
from egressproxy.ai.translation.openai_responses import answers as responses_answers
from egressproxy.ai.translation.openai_responses.streams import ResponseStreamReader, ResponseStreamWriter
from egressproxy.ai.translation.translator import ResponseTranslator
from egressproxy.model.work import at_once
from tests.ai.translation.conversations import names, objects, words
from tests.ai.translation.examples import ANTHROPIC, CHAT, PAIRS, request
from tests.support.properties import examples

IN_EACH_PAIR = pytest.mark.parametrize(("source", "target"), PAIRS)
READERS = {
    Api.OPENAI_CHAT: chat_answers.read_answer,
    Api.OPENAI_RESPONSES: responses_answers.read_answer,
    Api.ANTHROPIC: anthropic_answers.read_answer,
}
STREAM_READERS = {
    Api.OPENAI_CHAT: ChatStreamReader,
    Api.OPENAI_RESPONSES: ResponseStreamReader,
    Api.ANTHROPIC: MessageStreamReader,
}

counts = st.integers(0, 10**6)
usages = st.builds(
    lambda new, read, written, output, thought: Usage(new + read + written, output + thought, read, written, thought),
    counts, counts, counts, counts, counts,
)  # fmt: skip


@st.composite
def answers(draw: st.DrawFn) -> ModelAnswer:
    """One text, then calls: what every API tells apart."""
    text: list[Any] = draw(st.lists(words.map(Text), max_size=1))
    ids = draw(st.lists(names, max_size=3, unique=True))
    calls: list[Any] = [ToolCall(ident, draw(names), json.dumps(draw(objects))) for ident in ids]
    stop = Stop.TOOL_CALLS if calls else draw(st.sampled_from([Stop.END, Stop.LENGTH, Stop.FILTERED]))
    return ModelAnswer("1", draw(names), 1700000000, (*text, *calls), stop, None, draw(usages))


def written(api: Api, answer: ModelAnswer) -> bytes:
    if api is ANTHROPIC:
        return json.dumps(anthropic_answers.write_answer(answer)).encode()
    if api is CHAT:
        return json.dumps(chat_answers.write_answer(answer, 0)).encode()
    return json.dumps(responses_answers.write_answer(answer, {}, 0)).encode()


def meaning(answer: ModelAnswer) -> Any:
    parts = [
        (part.id, part.name, json.loads(part.arguments)) if isinstance(part, ToolCall) else part.text
        for part in answer.parts
    ]
    return answer.model, [part for part in parts if part], answer.stop, answer.usage


@IN_EACH_PAIR
@settings(max_examples=examples(50), deadline=None)
@given(answer=answers())
def test_any_answer_means_the_same_there_and_back(source: Api, target: Api, answer: ModelAnswer):
    status, there = at_once(ResponseTranslator(request(source, target)).whole(200, written(target, answer)))
    assert status == 200
    status, back = at_once(ResponseTranslator(request(target, source)).whole(200, there))
    assert status == 200
    assert meaning(READERS[target](json.loads(back))) == meaning(answer)


def events_of(answer: ModelAnswer, draw: st.DrawFn) -> list[StreamEvent]:
    """A stream of this answer, its parts cut anywhere."""
    told: list[StreamEvent] = [Started(answer.id, answer.model, answer.created, Usage())]
    for part in answer.parts:
        said = part.arguments if isinstance(part, ToolCall) else part.text
        if isinstance(part, ToolCall):
            told.append(PartStarted(PartKind.TOOL_CALL, part.id, part.name))
        else:
            told.append(PartStarted(PartKind.TEXT))
        cuts = sorted(draw(st.sets(st.integers(0, len(said)), max_size=4)) | {0, len(said)})
        told += [Delta(said[start:end]) for start, end in pairwise(cuts)]
        told.append(PartEnded())
        if draw(st.booleans()):
            told.append(KeepAlive())
    return [*told, Finished(answer.stop, None, answer.usage)]


def answer_of(told: list[StreamEvent]) -> ModelAnswer:
    """What these events say."""
    parts: list[Any] = []
    started = finished = None
    for event in told:
        match event:
            case Started():
                started = event
            case PartStarted():
                parts.append([event, ""])
            case Delta():
                parts[-1][1] += event.text
            case Finished():
                finished = event
    assert started is not None
    assert finished is not None
    read = [
        ToolCall(begun.id, begun.name, said) if begun.kind is PartKind.TOOL_CALL else Text(said)
        for begun, said in parts
    ]
    return ModelAnswer(started.id, started.model, None, tuple(read), finished.stop, None, finished.usage)


def stream_writer(api: Api) -> Any:
    if api is ANTHROPIC:
        return MessageStreamWriter()
    return ChatStreamWriter(True, 0) if api is CHAT else ResponseStreamWriter({}, 0)


@IN_EACH_PAIR
@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_any_stream_means_the_same_there_and_back(source: Api, target: Api, data: st.DataObject):
    answer = data.draw(answers())
    writer = stream_writer(target)
    stream = b"".join(map(writer.write, events_of(answer, data.draw)))
    for client, backend in ((source, target), (target, source)):
        more = {"stream_options": {"include_usage": True}} if client is CHAT else {}
        translator = ResponseTranslator(request(client, backend, stream=True, **more))
        stream = translator.feed(stream) + translator.end()
        assert not translator.has_failed
    reader = STREAM_READERS[target]()
    told = [
        one for name, content in EventStream().feed(stream) if name != COMMENT for one in reader.read(name, content)
    ]
    assert meaning(answer_of(told)) == meaning(answer)
