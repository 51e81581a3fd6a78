"""XAccessPolicy of kube-agentic-networking (`agentic.networking.x-k8s.io/v1alpha1`, as of its release 0.2.0)."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from egressproxy.config.resources.hostnames import Hostname
from egressproxy.config.resources.meta import Model, Resource
from egressproxy.config.resources.object_references import PolicyTargetReference
from egressproxy.config.resources.route_filters import ExternalAuthFilter
from egressproxy.config.resources.route_matches import HeaderMatch, Method, PathMatch
from egressproxy.config.resources.values import NOT_NULL, Label, Name, Port, RefusedValue, Subdomain, check_unique

AGENTIC_GROUP = "agentic.networking.x-k8s.io"
_UNREAD = f"{AGENTIC_GROUP}/v0alpha0"

McpMethodName = Literal[
    "tools", "prompts", "resources", "prompts/list", "tools/list", "resources/list", "resources/templates/list",
    "prompts/get", "tools/call", "resources/subscribe", "resources/unsubscribe", "resources/read",
]  # fmt: skip
#: The methods that name what they are about.
WITH_PARAMS = frozenset({"prompts/get", "tools/call", "resources/subscribe", "resources/unsubscribe", "resources/read"})


class AccessServiceAccount(Model):
    """A service account of the gateway's own trust domain."""

    namespace: Label | None = None
    """Its namespace. Default: the policy's."""
    name: Name
    """Its name."""


class AccessSource(Model):
    """The clients of a rule."""

    type: Literal["ServiceAccount", "SPIFFE"] | None = None
    """ServiceAccount or SPIFFE, which needs the field of its name. Default: any client."""
    spiffe: Annotated[str, Field(pattern=r"^spiffe://[a-z0-9._-]+(?:/[A-Za-z0-9._-]+)*$", max_length=2048)] | None = (
        None
    )
    """For type SPIFFE: the whole id."""
    service_account: AccessServiceAccount | None = None
    """For type ServiceAccount: the account."""

    def model_post_init(self, context: Any) -> None:
        """Refuse a source that could be read as any client by accident."""
        blocks = {"SPIFFE": ("spiffe", self.spiffe), "ServiceAccount": ("serviceAccount", self.service_account)}
        for kind, (name, block) in blocks.items():
            if (kind == self.type) != (block is not None):
                said = f"type {self.type}" if self.type is not None else "no type"
                remedy = f"add {name}" if block is None else f"write type: {kind}, or remove {name}"
                raise RefusedValue(f"source has {said} and {'no ' if block is None else ''}{name}", remedy)


class AccessMcpMethod(Model):
    """A method of MCP, and its allowed subjects."""

    name: McpMethodName
    """The method, or its first part for all methods below it."""
    params: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=10)] = ()
    """Names of tools and prompts (`params.name`), or URIs of resources (`params.uri`). Default: all."""

    def model_post_init(self, context: Any) -> None:
        if self.params and self.name not in WITH_PARAMS:
            raise RefusedValue(
                f"{self.name} has no params", f"remove params, or name one of {', '.join(sorted(WITH_PARAMS))}"
            )


class AccessMcp(Model):
    """Messages of MCP."""

    methods: Annotated[Annotated[tuple[AccessMcpMethod, ...], Field(max_length=10)] | None, NOT_NULL] = None
    """The methods. Default: all methods, unless `mcpBaseProtocolMethodsOption` adds some. An empty list: no method."""
    mcp_base_protocol_methods_option: Literal["SKIP_BASE_PROTOCOL_METHODS", "MATCH_BASE_PROTOCOL_METHODS"] = (
        "SKIP_BASE_PROTOCOL_METHODS"
    )
    """MATCH_BASE_PROTOCOL_METHODS: initialize, ping, tools/list, methods below completion, logging and notifications,
    the client's GET, and the DELETE of its session, too."""

    @field_validator("methods")
    @classmethod
    def _names_are_unique(cls, methods: tuple[AccessMcpMethod, ...] | None) -> tuple[AccessMcpMethod, ...] | None:
        check_unique((each.name for each in methods or ()), "name", "methods")
        return methods


class AccessCel(Model):
    """An expression in CEL."""

    expression: Annotated[str, Field(min_length=1)]
    """The expression, which has to be true."""


class Authorization(Model):
    """The allowed requests of a rule; all fields must match."""

    type: Literal["Inline", "CEL"]
    """Inline: by these fields. CEL: by `cel`, too."""
    methods: Annotated[tuple[Method, ...], Field(max_length=9)] = ()
    """Methods of HTTP. Default: all."""
    paths: Annotated[tuple[PathMatch, ...], Field(max_length=10)] = ()
    """Paths, as the client has sent them. Default: all."""
    headers: Annotated[tuple[HeaderMatch, ...], Field(max_length=10)] = ()
    """Fields of the request, all of which must match."""
    hosts: Annotated[tuple[Hostname, ...], Field(max_length=10)] = ()
    """Hosts that the client names, or *.suffix. Default: all."""
    ports: Annotated[tuple[Port, ...], Field(max_length=10)] = ()
    """Ports: of a forward proxy those that the client names, else the listener's. Default: all."""
    mcp: Annotated[AccessMcp | None, NOT_NULL] = None
    """Messages of MCP. Default: every request."""
    cel: AccessCel | None = None
    """For type CEL: the expression. Without `mcp` it is asked of calls of tools (MCP tools/call) alone."""

    def model_post_init(self, context: Any) -> None:
        if (self.type == "CEL") != (self.cel is not None):
            remedy = "add cel.expression" if self.cel is None else "write type: CEL, or remove cel"
            raise RefusedValue(f"type {self.type} {'needs' if self.cel is None else 'has no'} cel", remedy)


class AccessRule(Model):
    """A rule: clients, and their allowed requests."""

    name: Annotated[Subdomain, Field(max_length=63)]
    """The name of the rule, for logs and explanations."""
    source: AccessSource = AccessSource.model_construct()
    """The clients. Default: any client."""
    authorization: Annotated[Authorization | None, NOT_NULL] = None
    """The allowed requests. Default: all."""


class AccessPolicySpec(Model):
    """The spec of a policy."""

    target_refs: Annotated[tuple[PolicyTargetReference, ...], Field(min_length=1, max_length=10)]
    """The targets, in the policy's namespace and of one kind: Gateways or listeners, routes, or backends."""
    action: Literal["Allow", "ExternalAuth"]
    """Allow: what no rule matches is refused. ExternalAuth: what a rule matches is put to `externalAuth`."""
    external_auth: ExternalAuthFilter | None = None
    """The authorization server, for action ExternalAuth."""
    rules: Annotated[Annotated[tuple[AccessRule, ...], Field(max_length=10)] | None, NOT_NULL] = None
    """The rules, one of which must match. Default: one for every request. An empty list: none."""

    @field_validator("rules")
    @classmethod
    def _names_are_unique(cls, rules: tuple[AccessRule, ...] | None) -> tuple[AccessRule, ...] | None:
        check_unique((rule.name for rule in rules or ()), "name", "rules")
        return rules

    def model_post_init(self, context: Any) -> None:
        if len({ref.kind for ref in self.target_refs}) > 1:
            raise RefusedValue("the targets are of several kinds", "write a policy for each kind")
        if self.action == "ExternalAuth" and self.external_auth is None:
            raise RefusedValue("action ExternalAuth needs externalAuth", "add externalAuth")


class AccessPolicy(Resource, group=AGENTIC_GROUP, kind="XAccessPolicy", versions=("v1alpha1", "v0alpha0")):
    """The clients of a Gateway, route or backend, and their allowed requests.

    Rules of v0alpha0 have other fields, and are not read: the policy allows nothing at its targets.
    """

    NULLS_ARE_ABSENT: ClassVar[bool] = False

    spec: AccessPolicySpec

    @property
    def is_unread(self) -> bool:
        """Whether the rules are those of a version that is not read."""
        return self.api_version == _UNREAD

    @model_validator(mode="before")
    @classmethod
    def _without_unread_rules(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("apiVersion") != _UNREAD or not isinstance(value.get("spec"), dict):
            return value
        targets = {name: each for name, each in value["spec"].items() if name == "targetRefs"}
        return {**value, "spec": {**targets, "action": "Allow", "rules": []}}
