"""ToolPolicy: the tools that may be offered and called, and their arguments; also MCP resources and prompts.

An MCP client that calls a denied tool gets a JSON-RPC error, and the server does not see the call; lists are filtered.
In chat APIs denied tools are removed from requests, and a response that calls one is refused, whole or streamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated, Any, Final, Literal

from egressproxy.ai.apis.errors import rpc_error
from egressproxy.ai.apis.long_json import dumping
from egressproxy.ai.apis.member_names import ANSWER, RPC_ANSWER, finding_rpc_fault
from egressproxy.ai.apis.message import SCANNED_AT_ONCE, CalledTool, JsonMessage, in_object
from egressproxy.ai.apis.offered_tools import WEB_SEARCH, names_of_tool
from egressproxy.ai.apis.request import AiRequest
from egressproxy.ai.apis.shared import (
    answer_view,
    operation,
    remedy_of_unseen,
    request_view,
    status_of_unseen,
    view_ahead,
)
from egressproxy.ai.apis.streams import SLICE, framing_of
from egressproxy.ai.apis.websockets import asks_for_messages
from egressproxy.ai.content.body_kinds import media_type_of
from egressproxy.ai.filters.tool_pins import LISTED_TOOLS, ToolPins, ToolPinsConfig, file_problem
from egressproxy.ai.filters.tool_rules import NameRules, Names, ToolRules, Tools
from egressproxy.ai.filters.tool_streams import ToolStream
from egressproxy.errors import Reason
from egressproxy.filters.base import (
    BodyMode,
    BodyResult,
    Filter,
    FilterContext,
    FilterType,
    OfMessages,
    Phase,
    Rejected,
)
from egressproxy.filters.settings import FilterConfig, Within
from egressproxy.ir.policy import MAX_BUFFERED_BYTES
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.strict_json import OtherSpelling, Unreadable
from egressproxy.model.work import Work
from egressproxy.net.cooperative import run

#: JSON-RPC 2.0 section 5.1. Source: Model Context Protocol, Server Features, Tools: that of an unknown tool.
INVALID_PARAMS: Final = -32602
#: The default limit of a response that is read, in bytes.
_MAX_ANSWER: Final = 4 * 1024 * 1024
#: The member of a result with a list, and the member that names its elements.
_LISTS: Final = (("tools", "name"), ("resources", "uri"), ("resourceTemplates", "uriTemplate"), ("prompts", "name"))
#: Methods of MCP that name a resource.
_OF_RESOURCES: Final = frozenset(("resources/read", "resources/subscribe", "resources/unsubscribe"))
#: Members of a chat request that are invalid without tools.
_OF_TOOLS: Final = frozenset(
    (
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "toolConfig",
        "tool_config",
        "mcp_servers",
    )
)
#: The members that limit the model's choice of tools: OpenAI's two APIs, and Gemini.
_CHOICES: Final = (
    ("tool_choice", "tools"),
    ("tool_choice", "allowed_tools", "tools"),
    *product(
        ("toolConfig", "tool_config"),
        ("functionCallingConfig", "function_calling_config"),
        ("allowedFunctionNames", "allowed_function_names"),
    ),
)
#: The member of a batch with the list of requests, and the member of an entry with the request. What makes the secret
#: of a realtime session has that session.
_BATCHES: Final = (
    (("requests",), "params"),
    (("batch", "inputConfig", "requests", "requests"), "request"),
    (("batch", "input_config", "requests", "requests"), "request"),
    ((), "session"),
)
#: Types of a choice that name no tool.
_CHOICE_TYPES: Final = frozenset(("allowed_tools", "any", "auto", "custom", "function", "none", "required", "tool"))
#: The most characters of a name in messages.
_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class ToolPolicyConfig(FilterConfig):
    """The allowed tools, resources and prompts.

    Attributes:
        tools: tools of MCP servers, and those that requests to chat APIs offer.
        resources: URIs of resources of MCP servers.
        prompts: names of prompts of MCP servers.
        unreadable: the effect on a body that is not JSON or ambiguous.
        max_body_bytes: the longest request or response that is read; None: MAX_BUFFERED_BYTES, 4 MiB of a response.
    """

    tools: Tools
    resources: Names | None = None
    prompts: Names | None = None
    unreadable: Literal["Deny", "Allow"] = "Deny"
    max_body_bytes: Annotated[int, Within(ge=1, le=64 * 1024 * 1024)] | None = None


class _Denial(Exception):
    """An MCP message is not allowed. The text names the tool, without arguments."""


class ToolPolicy(Filter):
    """Gets requests and JSON responses whole, and streams in pieces."""

    decodes = True
    of_messages = OfMessages.ASKS

    def __init__(self, context: FilterContext, pins: ToolPins | None = None) -> None:
        config: ToolPolicyConfig = context.config
        self._name = context.name
        self._source = context.source
        self._tools = ToolRules(config.tools)
        self._resources, self._prompts = NameRules(config.resources), NameRules(config.prompts)
        self._denies_unreadable = config.unreadable == "Deny"
        self.max_buffer_bytes = config.max_body_bytes or MAX_BUFFERED_BYTES
        self.max_answer_bytes = config.max_body_bytes or _MAX_ANSWER
        self._stream: StateSlot[ToolStream] = StateSlot("tools")
        self._denied = context.meter.counter(
            "egress_tool_denials", "What ToolPolicy has denied, or taken out of lists.", ("kind", "action")
        )
        self.runs_in = frozenset((context.phase, Phase.REQUEST_BODY, Phase.RESPONSE_BODY))
        self._pins = pins
        #: Of a request that asks for a list of tools: whether it asks for the first page of it, alone.
        self._first_page: StateSlot[bool] = StateSlot("first page of tools")

    # --- requests ----------------------------------------------------------------------------------------------------
    def request_headers(self, exchange: Exchange) -> None:
        """Raises Rejected for a tunnel, and for an upgrade whose messages do not come here."""
        if not exchange.is_tunnel and (
            not exchange.request.upgrade or asks_for_messages(exchange, needs_them=self._denies_unreadable)
        ):
            return
        if self._denies_unreadable:
            what = "a tunnel" if exchange.is_tunnel else "an upgraded connection"
            error = self._refusal(f"what is said in {what} cannot be looked at", status_of_unseen(exchange))
            error.remedy = remedy_of_unseen(exchange)
            raise error

    def backend_request(self, exchange: Exchange) -> None:
        """`request_headers` for one attempt."""
        self.request_headers(exchange)

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        """Requests whole, with any Content-Type, since a server may read them as JSON anyway. Raises Rejected (502)
        for a response of an AI provider with an unreadable type.
        """
        if phase is Phase.REQUEST_BODY:
            return BodyMode.BUFFER
        media_type = media_type_of(exchange.response.fields)
        if framing_of(media_type, operation(exchange)) is not None:
            return BodyMode.STREAM
        if not 200 <= exchange.response.status < 300:
            return None
        # MCP servers over SSE accept each message with 202; the response comes as an event.
        if exchange.response.status == 202 and not media_type and operation(exchange) is None:
            return None
        if not media_type or media_type.endswith((b"/json", b"+json")):
            return BodyMode.BUFFER
        # SDKs of AI providers ignore the response's type.
        if operation(exchange) is not None and exchange.response.body and self._denies_unreadable:
            shown = (exchange.response.fields.get(b"content-type") or b"").decode("latin-1")[:80]
            raise self._refusal(f"the answer cannot be read: its Content-Type is {shown}", 502)
        return None

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        """Returns a JSON-RPC error for a denied MCP message. Raises Rejected for other denials."""
        if not data:
            return data
        return run(self._judged_request(exchange, data), is_long=len(data) > SCANNED_AT_ONCE)

    def _judged_request(self, exchange: Exchange, data: bytes) -> Work[bytes | LocalResponse]:
        try:
            if data.lstrip()[:1] == b"{":
                yield from view_ahead(exchange, data, is_request=True)
                value = request_view(exchange, data).value
            else:
                value = yield from JsonMessage.parsing(data)
            fault = yield from finding_rpc_fault(value)
            if fault:
                raise OtherSpelling(fault)
            if type(value) is dict:
                yield from self._batch(value)
        except Unreadable as error:
            if self._denies_unreadable or isinstance(error, OtherSpelling):
                raise self._refusal(f"the request cannot be read: {error}", 400) from None
            return data
        messages = value if type(value) is list else [value]
        if any(type(each) is dict and ("jsonrpc" in each or "method" in each) for each in messages):
            answer = yield from self._rpc(exchange, messages, is_batch=type(value) is list)
            if answer is not None:
                return answer
        return (yield from self._chat(exchange, data)) if type(value) is dict else data  # a request may look like both

    def _batch(self, value: dict[str, Any]) -> Work[None]:
        """Check the requests in a batch of Anthropic or Gemini, and a realtime session. Raises Rejected, Unreadable."""
        for path, member in _BATCHES:
            listed = in_object(value, *path)
            for each in listed if type(listed) is list else (listed,):
                yield
                asked = in_object(each, member)
                if type(asked) is dict:
                    for tool in AiRequest.of(b"", asked).tools:
                        if not self._tools.may_be_offered(tool.name):
                            self._denied.add(1, "tool", "denied")
                            what = "batch" if path else member
                            raise self._refusal(f"the {what} offers tool {_shown(tool.name)}, which is not allowed")

    def _rpc(self, exchange: Exchange, messages: list[Any], *, is_batch: bool) -> Work[LocalResponse | None]:
        denials: list[str] = []
        if self._pins is not None and self._pins.learns(exchange.backend):
            pages = [in_object(each, "params", "cursor") for each in messages if _lists_tools(each)]
            if pages:
                exchange.keep(self._first_page, pages == [None] and not is_batch)
        for message in messages:
            yield
            try:
                self._judge_rpc(message, exchange.backend)
                denials.append("")
            except _Denial as denial:
                denials.append(str(denial))
        if not any(denials):
            return None
        exchange.reason, exchange.rule, exchange.denied = Reason.FILTER_REJECTED, self._source, True
        answers: list[dict[str, Any]] = []
        about = {"reason": Reason.FILTER_REJECTED.value, "rule": self._source}
        for message, why in zip(messages, denials, strict=True):
            if type(message) is dict and "id" in message:
                why = why or "the batch has another message that is not allowed"
                answers.append(rpc_error(message, INVALID_PARAMS, why, about))
                yield
        if not answers:  # notifications are not answered
            raise Rejected(next(denial for denial in denials if denial))
        body = yield from dumping(answers if is_batch else answers[0])
        return LocalResponse(200, ((b"Content-Type", b"application/json"),), body)

    def _judge_rpc(self, message: Any, backend: str) -> None:
        """Raises _Denial."""
        if type(message) is not dict:
            raise self._denial("message", "a message that is no object")
        method, params = message.get("method"), message.get("params")
        if type(method) is not str:
            return  # a response of the client
        if method == "tools/call":
            name = in_object(params, "name")
            arguments = params.get("arguments", {}) if type(params) is dict else {}
            if type(name) is not str or not self._tools.allows(name, {} if arguments is None else arguments):
                raise self._denial("tool", f"tool {_shown(name)}", is_about_arguments=self._is_known(name))
            why = self._pins.refusal(name, backend) if self._pins is not None else ""
            if why:
                self._denied.add(1, "tool", "denied")
                raise _Denial(f"filter {self._name}: tool {_shown(name)} {why}")
        elif method in _OF_RESOURCES:
            uri = in_object(params, "uri")
            if not self._resources.allows(uri):
                raise self._denial("resource", f"resource {_shown(uri)}")
        elif method == "prompts/get":
            name = in_object(params, "name")
            if not self._prompts.allows(name):
                raise self._denial("prompt", f"prompt {_shown(name)}")
        elif method == "completion/complete":
            ref = in_object(params, "ref")
            uri, name = in_object(ref, "uri"), in_object(ref, "name")
            if (uri is not None and not self._resources.allows(uri)) or (
                name is not None and not self._prompts.allows(name)
            ):
                raise self._denial("prompt", f"{_shown(uri if uri is not None else name)}")

    def _is_known(self, name: object) -> bool:
        return type(name) is str and self._tools.may_be_offered(name)

    def _denial(self, kind: str, what: str, *, is_about_arguments: bool = False) -> _Denial:
        self._denied.add(1, kind, "denied")
        how = " with these arguments" if is_about_arguments else ""
        return _Denial(f"filter {self._name}: {what} is not allowed{how}")

    def _chat(self, exchange: Exchange, data: bytes) -> Work[bytes]:
        request = request_view(exchange, data)
        denied = [tool for tool in request.tools if not self._tools.may_be_offered(tool.name)]
        if not denied:
            return data
        self._denied.add(len({tool.path for tool in denied}), "tool", "withheld")
        forced = _forced_tools(request)
        for tool in denied:
            if tool.name in forced:
                raise self._refusal(f"the request makes the model call tool {_shown(tool.name)}, which is not allowed")
        self._narrow_choice(request)
        request.withhold_tools(denied)
        # No API accepts an empty list of tools.
        if not request.tools:
            return (yield from dumping({key: each for key, each in request.value.items() if key not in _OF_TOOLS}))
        return (yield from request.writing())

    def _narrow_choice(self, request: AiRequest) -> None:
        """Remove denied tools from the model's choice. Raises Rejected if no tool remains."""
        for path in _CHOICES:
            listed = in_object(request.value, *path)
            if type(listed) is not list:
                continue
            names = [names_of_tool(each) if type(each) is dict else [str(each)] for each in listed]
            kept = [
                each
                for each, of_entry in zip(listed, names, strict=True)
                if all(map(self._tools.may_be_offered, of_entry))
            ]
            if not kept and listed:
                raise self._refusal(f"the model is to choose from tool {_shown(names[0][0])}, which is not allowed")
            if len(kept) < len(listed):
                request.put(path, kept)

    # --- answers -----------------------------------------------------------------------------------------------------
    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        """Raises Rejected for a call of a denied tool."""
        is_learned = self._pins is not None and self._pins.learns(exchange.backend)
        return run(self._judged_answer(exchange, data, last), is_long=is_learned or len(data) > SLICE)

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        stream = exchange.state.get(self._stream)
        return stream.held if stream is not None else 0

    def _judged_answer(self, exchange: Exchange, data: bytes, last: bool) -> Work[bytes]:
        framing = framing_of(media_type_of(exchange.response.fields), operation(exchange))
        try:
            if framing is not None:
                stream = exchange.state.get(self._stream)
                if stream is None:
                    stream = ToolStream(
                        framing,
                        self._judge,
                        self._tools.asks_arguments,
                        partial(self._shortening, exchange),
                        is_lenient=not self._denies_unreadable,
                    )
                    exchange.keep(self._stream, stream)
                return (yield from stream.feeding(data, is_last=last))
            return (yield from self._whole_answer(exchange, data)) if data else data
        except Unreadable as error:
            if self._denies_unreadable or framing is not None or isinstance(error, OtherSpelling):
                raise self._refusal(f"the answer cannot be read: {error}", 502) from None
            return data

    def _whole_answer(self, exchange: Exchange, data: bytes) -> Work[bytes]:
        yield from view_ahead(exchange, data, is_request=False)
        answer = answer_view(exchange, data)
        messages = answer.value if type(answer.value) is list else [answer.value]
        is_rpc = any(type(each) is dict and "jsonrpc" in each for each in messages)
        fault = (RPC_ANSWER if is_rpc else ANSWER).fault(answer.value)
        if fault:
            raise OtherSpelling(fault)
        if is_rpc:
            yield from self._shortening(exchange, answer)
        elif b'"name"' in data.lower() or b"\\u" in data:  # as every call has it
            for call in (yield from answer.finding_calls()):
                self._judge_call(call)
                yield
        return (yield from answer.writing())

    def _judge_call(self, call: CalledTool) -> None:
        """Raises Rejected, OtherSpelling."""
        if call.fault:
            raise OtherSpelling(call.fault)
        self._judge(call.name, call.arguments)

    def _judge(self, name: str, arguments: Any) -> None:
        if not self._tools.allows(name, arguments):
            self._denied.add(1, "tool", "denied")
            how = " with these arguments" if self._tools.may_be_offered(name) else ""
            raise self._refusal(f"the model calls tool {_shown(name)}, which is not allowed{how}")

    def _shortening(self, exchange: Exchange, message: JsonMessage) -> Work[None]:
        """Remove denied entries from the lists of an MCP message or batch."""
        backend, tools_of_rule = exchange.backend, exchange.state.get(LISTED_TOOLS)
        deviating: set[str] = set()
        for path, result in _results(message.value):
            for key, member in _LISTS:
                listed = result.get(key)
                if type(listed) is not list:
                    continue
                pins = self._pins if key == "tools" else None
                if pins is not None:
                    page = exchange.state.get(self._first_page)
                    # The stream of a GET has the answers to requests of their own (HTTP with SSE, 2024-11-05).
                    if page is not None or exchange.method == b"GET":
                        yield from pins.learning(result, backend, is_first=bool(page))
                kept = []
                for each in listed:
                    yield
                    if not self._may_be_shown(key, in_object(each, member)):
                        continue
                    if pins is None or (yield from pins.judging(each, backend, tools_of_rule, deviating)):
                        kept.append(each)
                if len(kept) < len(listed):
                    self._denied.add(len(listed) - len(kept), key.removesuffix("s"), "withheld")
                    message.put((*path, key), kept)

    def _may_be_shown(self, key: str, name: object) -> bool:
        if key == "tools":
            return type(name) is str and self._tools.may_be_offered(name)
        return self._prompts.allows(name) if key == "prompts" else self._resources.allows(name)

    def _refusal(self, message: str, status: int = 403) -> Rejected:
        return Rejected(f"filter {self._name}: {message}", status=status)


def _lists_tools(message: Any) -> bool:
    return type(message) is dict and message.get("method") == "tools/list"


def _results(value: Any) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """The results of a JSON-RPC response or batch, with their paths."""
    messages: list[tuple[tuple[str | int, ...], Any]] = [((), value)] if type(value) is dict else []
    if type(value) is list:
        messages = [((index,), each) for index, each in enumerate(value)]
    for path, message in messages:
        result = in_object(message, "result")
        if type(result) is dict:
            yield (*path, "result"), result


def _forced_tools(request: AiRequest) -> list[str]:
    """All names of the tool that the request forces the model to call; empty without such a tool."""
    paths = (
        ("tool_choice", "function", "name"), ("tool_choice", "name"), ("tool_choice", "custom", "name"),
        ("function_call", "name"), ("toolConfig", "toolChoice", "tool", "name"),
        ("tool_choice", "type"),  # of a tool that the provider runs
    )  # fmt: skip
    found = (in_object(request.value, *path) for path in paths)
    named = [name for name in found if type(name) is str and name not in _CHOICE_TYPES]
    return named if request.value.get(WEB_SEARCH) is None else [*named, "web_search"]


def _shown(name: object) -> str:
    return ascii(name[:_SHOWN]) if type(name) is str else "without a name"


TOOL_POLICY = FilterType(
    name="egressproxy.io/ToolPolicy:v1",
    phases=frozenset((Phase.REQUEST_HEADERS,)),
    config_model=ToolPolicyConfig,
    build=ToolPolicy,
    also=frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_BODY)),
    summary="Says which tools may be offered and called, with which arguments; of MCP resources and prompts, too.",
)


def pinned_tools(context: FilterContext) -> ToolPolicy:
    """A ToolPolicy of the pins of one server. Raises ValueError where it is for several, and UnusableReference."""
    config: ToolPinsConfig = context.config
    if context.scope.partition(" ")[0] in ("Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute"):
        raise ValueError("pins are for one server: write the filter in `extensions` of its Backend, or in its policy")
    rules = ToolPolicyConfig(Tools(), unreadable=config.unreadable, max_body_bytes=config.max_body_bytes)
    return ToolPolicy(replace(context, config=rules), ToolPins(config, context))


TOOL_PINS = FilterType(
    name="egressproxy.io/ToolPins:v1",
    phases=frozenset((Phase.BACKEND_REQUEST,)),
    config_model=ToolPinsConfig,
    build=pinned_tools,
    also=frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_BODY)),
    summary="Pins the tools of an MCP server by the hashes of their definitions, and tells what changes.",
    machine_field=lambda config: "learnFile" if config.learn_file is not None else "",
    machine_problem=file_problem,
    is_shared=True,
)
