"""Calls of functions that stand for another kind of tool of the client, made calls of that tool again: custom tools of
OpenAI, whose input is plain text, and functions of a namespace.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from egressproxy.ai.translation.content import INPUT
from egressproxy.ai.translation.conversation import (
    Delta,
    ModelAnswer,
    PartEnded,
    PartKind,
    PartStarted,
    StreamEvent,
    ToolCall,
    ToolForm,
)
from egressproxy.ai.translation.errors import BadAnswer
from egressproxy.ai.translation.event_stream import MAX_EVENT_BYTES
from egressproxy.model.strict_json import Unreadable, loads


def in_own_form(answer: ModelAnswer, forms: Mapping[str, ToolForm]) -> ModelAnswer:
    """This answer, with calls of the client's own tools."""
    if not forms:
        return answer
    return replace(answer, parts=tuple(_in_own_form(part, forms) if type(part) is ToolCall else part
                                       for part in answer.parts))  # fmt: skip


def _in_own_form(call: ToolCall, forms: Mapping[str, ToolForm]) -> ToolCall:
    form = forms.get(call.name)
    if form is None:
        return call
    arguments = _input(call.arguments) if form.is_custom else call.arguments
    return replace(call, name=form.name, arguments=arguments, namespace=form.namespace, is_custom=form.is_custom)


def _input(arguments: str) -> str:
    """The text that a custom tool gets. A model that has ignored the one argument means its whole output."""
    try:
        value = loads(arguments)
    except Unreadable:
        return arguments
    text = value.get(INPUT) if type(value) is dict else None
    return text if type(text) is str else arguments


class CallForms:
    """The same for the events of a stream. The input of a custom tool comes at once, when its JSON is whole."""

    __slots__ = ("_arguments", "_forms", "_size")

    def __init__(self, forms: Mapping[str, ToolForm]) -> None:
        self._forms = forms
        self._arguments: io.StringIO | None = None  # of the call of a custom tool that is open
        self._size = 0

    def of(self, events: Iterable[StreamEvent]) -> Iterator[StreamEvent]:
        """What the client's API has for these events. Raises BadAnswer for an input that is too long to be kept."""
        for stream_event in events:
            if self._arguments is not None:
                if isinstance(stream_event, Delta):
                    self._keep(self._arguments, stream_event.text)
                    continue
                if isinstance(stream_event, PartEnded):
                    text, self._arguments = _input(self._arguments.getvalue()), None
                    if text:
                        yield Delta(text)
            form = self._forms.get(stream_event.name) if isinstance(stream_event, PartStarted) else None
            if form is None or not isinstance(stream_event, PartStarted):
                yield stream_event
                continue
            if form.is_custom:
                self._arguments, self._size = io.StringIO(), 0
            kind = PartKind.CUSTOM_CALL if form.is_custom else stream_event.kind
            yield PartStarted(kind, stream_event.id, form.name, form.namespace)

    def _keep(self, kept: io.StringIO, text: str) -> None:
        self._size += len(text)
        if self._size > MAX_EVENT_BYTES:
            raise BadAnswer("the input of a custom tool is too long to be kept")
        kept.write(text)
