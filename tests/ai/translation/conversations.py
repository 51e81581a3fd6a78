"""Conversations for property tests: what each API can say, and when two of them mean the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.conversation import (
    ContentPart,
    Conversation,
    Effort,
    Image,
    OutputFormat,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)

CHOICES = [ToolChoice("auto"), ToolChoice("none"), ToolChoice("required")]

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
names = st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True)
texts = words.map(Text)
images = st.one_of(
    st.just(Image(url="https://a.example/cat.png")),
    st.builds(Image, media_type=st.sampled_from(["image/png", "image/jpeg"]), data=st.just("AAAA")),
)
leaves = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | words
)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))
objects = st.dictionaries(words, values, max_size=3)
schemas = objects.map(lambda properties: {"type": "object", "properties": properties})
tools = st.builds(
    Tool,
    names,
    description=st.none() | words,
    parameters=schemas,
    is_strict=st.none() | st.booleans(),
)


@st.composite
def turns(draw: st.DrawFn) -> tuple[Turn, ...]:
    """A system prompt perhaps, then users and assistants in turn, with calls of tools that are answered at once."""
    made: list[Turn] = []
    if draw(st.booleans()):
        made.append(Turn(Role.SYSTEM, tuple(draw(st.lists(texts, min_size=1, max_size=2)))))
    for _ in range(draw(st.integers(0, 3))):
        made.append(Turn(Role.USER, tuple(draw(st.lists(texts | images, min_size=1, max_size=3)))))
        said: list[ContentPart] = list(draw(st.lists(texts, max_size=2)))
        ids = draw(st.lists(names, max_size=3, unique=True))
        calls: list[ContentPart] = [ToolCall(ident, draw(names), json.dumps(draw(objects))) for ident in ids]
        if said or calls:
            made.append(Turn(Role.ASSISTANT, (*said, *calls)))
        results = [ToolResult(ident, tuple(draw(st.lists(texts, min_size=1, max_size=2)))) for ident in ids]
        made += [Turn(Role.USER, (result,)) for result in results]
    made.append(Turn(Role.USER, tuple(draw(st.lists(texts | images, min_size=1, max_size=3)))))
    return tuple(made)


@st.composite
def conversations(draw: st.DrawFn, source: Api, target: Api) -> Conversation:
    """A conversation that both APIs can say."""
    both = {source, target}
    optional = st.none()
    has_anthropic, has_responses = Api.ANTHROPIC in both, Api.OPENAI_RESPONSES in both
    offered = tuple(draw(st.lists(tools, max_size=2)))
    efforts = [effort for effort in Effort if not has_anthropic or effort is not Effort.MINIMAL]
    strict = st.just(True) if has_anthropic else st.none() | st.booleans()
    formats = st.builds(OutputFormat, schemas, name=names, is_strict=strict)
    stop = st.just(()) if has_responses else st.lists(words, max_size=4).map(tuple)
    return Conversation(
        model=draw(names),
        turns=draw(turns()),
        max_tokens=draw(st.integers(1, 10**6) if has_anthropic else optional | st.integers(1, 10**6)),
        temperature=draw(optional | st.floats(0, 1 if has_anthropic else 2)),
        top_p=draw(optional | st.floats(0, 1)),
        stop=draw(stop),
        tools=offered,
        tool_choice=draw(
            st.sampled_from(
                [None, *map(ToolChoice, ("auto", "none", "required")), ToolChoice("named", offered[0].name)]
            )
            if offered
            else optional
        ),
        has_parallel_calls=draw(st.sampled_from([None, True, False]) if offered else optional),
        effort=draw(optional | st.sampled_from(efforts)),
        verbosity=None if has_anthropic else draw(st.sampled_from([None, "low", "high"])),
        output_format=draw(optional | formats),
        is_stream=draw(st.booleans()),
        user=draw(optional | words),
        metadata=None if has_anthropic else draw(optional | st.dictionaries(words, words, min_size=1, max_size=2)),
        service_tier=draw(st.sampled_from([None, "default"])),
        prompt_cache_key=None if has_anthropic else draw(optional | words),
    )


def meaning(conversation: Conversation) -> Any:
    """The conversation without what APIs do not tell apart: where turns of one speaker are cut, defaults, spaces."""
    said: list[tuple[Role, list[Any]]] = []
    for turn in conversation.turns:
        role = Role.SYSTEM if turn.role is Role.DEVELOPER else turn.role
        parts = [
            (part.id, part.name, json.loads(part.arguments)) if isinstance(part, ToolCall) else part
            for part in turn.parts
        ]
        if said and said[-1][0] is role:
            said[-1][1].extend(parts)
        else:
            said.append((role, parts))
    choice, output = conversation.tool_choice, conversation.output_format
    return (
        said,
        None if choice is None or choice.mode == "auto" else choice,
        # nothing is called, so nothing is called at once
        conversation.has_parallel_calls is False and not (choice is not None and choice.mode == "none"),
        [replace(tool, is_strict=tool.is_strict or False) for tool in conversation.tools],
        None if output is None else replace(output, name=None, is_strict=output.is_strict or False),
        replace(
            conversation,
            turns=(),
            tools=(),
            tool_choice=None,
            has_parallel_calls=None,
            output_format=None,
            wants_usage=True,
        ),
    )
