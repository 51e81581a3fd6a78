"""Objects from a cluster, as JSON, one in a line.

An API server has checked them against its schemas, which may be older than ours, and other people write them. So an
unreadable object does not block others: it is left out and reported. Its restrictions fail closed: an unreadable
EgressPolicy denies all destinations at its targets, an XAccessPolicy allows nothing there, and a BackendTLSPolicy
trusts no CA. An unreadable route has no
backends, so that its requests do not match another route, without its filters. If the targets are unreadable, too, the
policy applies to all possible targets in its namespace.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from egressproxy.config.explanations import explain, field_path, path_text
from egressproxy.config.reading import deep_json
from egressproxy.config.reading.problems import CANNOT_BE_READ, Problem, Severity
from egressproxy.config.resources.access_policy import AccessPolicy
from egressproxy.config.resources.backend import Backend, BackendTlsPolicy, WorkingGroupBackend, XBackendDestination
from egressproxy.config.resources.core import Secret, Service
from egressproxy.config.resources.destination import PUBLISHED
from egressproxy.config.resources.gateway import Gateway, ListenerSet
from egressproxy.config.resources.kinds import kind_class
from egressproxy.config.resources.meta import OUR_GROUP, Origin, Resource, without_nulls
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.routes import GrpcRoute, HttpRoute, TcpRoute, TlsRoute
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.config.served_kinds import READ_KINDS

#: The origin of cluster objects, whose authors have fewer rights than the operator.
CLUSTER_ORIGIN: Final = Origin(is_from_api=True, is_from_cluster=True)
#: The specs that replace unreadable ones: no destination or request is allowed, no certificate is trusted.
CLOSED_POLICY: Final[dict[str, Any]] = {
    "destinations": {"allow": [], "deny": [{"cidrs": ["0.0.0.0/0", "::/0"]}]},
    # An unknown type, which closes all its places, including paths through a parent.
    "extensions": [
        {"name": f"cannot-be-read-{phase}", "type": "invalid.example/CannotBeRead:v1", "phase": phase}
        for phase in ("request-headers", "connect")
    ],
}
_CLOSED: Final[dict[type[Resource], dict[str, Any]]] = {
    EgressPolicy: CLOSED_POLICY,
    AccessPolicy: {"action": "Allow", "rules": []},
    BackendTlsPolicy: {
        "validation": {
            "hostname": "policy-cannot-be-read.invalid",
            "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "policy-cannot-be-read"}],
        }
    },
}


#: Routes whose replacement has rules without backends.
_STREAMS: Final = (TlsRoute, TcpRoute)
_ROUTES: Final = (HttpRoute, GrpcRoute, *_STREAMS)
_NOWHERE: Final = {"backendRefs": [{"name": "route-cannot-be-read", "port": 1}]}
_BACKENDS: Final = (Backend, WorkingGroupBackend, XBackendDestination, XBackend)
_OF_POLICIES: Final = (Gateway, ListenerSet, HttpRoute, GrpcRoute, TlsRoute, TcpRoute, Service, *_BACKENDS)
#: The kinds of targets that each of them may name.
TARGETS: Final = {
    EgressPolicy: _OF_POLICIES,
    AccessPolicy: _OF_POLICIES,
    BackendTlsPolicy: (Service, *_BACKENDS),
}


def cluster_objects(
    packed: bytes,
    tell: Callable[[Problem], None],
    others: Iterable[Resource],
    read: set[tuple[str, str]],
    leave_out: Callable[[dict[str, Any]], None] = lambda _value: None,
) -> Iterator[Resource]:
    """The objects of `kubernetes.cluster_source`; `tell` is called for each that is not served as written. `others`
    are objects of other sources, which may be policy targets, too. `read` gets the completely read kinds (group and
    kind); `leave_out` is called with each object of a kind that is not read.
    """
    everything, unknown = list(others), []
    for line in zlib.decompress(packed).split(b"\n"):
        if line:
            value: dict[str, Any] = deep_json.loads(line)
            if value["kind"] == READ_KINDS:
                read |= {(group, kind) for group, kind in value["read"]}
                continue
            if kind_class(value["apiVersion"], value["kind"], value.get("spec")) is None:
                leave_out(value)
                continue
            made = _read(value, tell, is_too_deep=deep_json.is_too_deep(line))
            if isinstance(made, Resource):
                everything.append(made)
                yield made
            elif made is not None:
                unknown.append(made)
    for each in unknown:
        yield from each.closed(everything, tell)


def _read(value: dict[str, Any], tell: Callable[[Problem], None], *, is_too_deep: bool) -> Resource | _Unknown | None:
    kind = kind_class(value["apiVersion"], value["kind"], value.get("spec"))
    assert kind is not None
    if is_too_deep:
        message = f"it has more than {deep_json.MAX_DEPTH} levels of objects and lists"
        tell(_problem(value, "", message, "nest it less", Severity.UNSERVED))
        return _closed(kind, value, tell)
    value = without_nulls(value) if kind.NULLS_ARE_ABSENT else value
    try:
        made = kind.model_validate(value, context={PUBLISHED: kind.GROUP != OUR_GROUP})
    except ValidationError as error:
        for problem in _problems(error, kind, value):
            tell(problem)
        return _closed(kind, value, tell)
    made.written(value, CLUSTER_ORIGIN)
    return made


def _closed(kind: type[Resource], value: dict[str, Any], tell: Callable[[Problem], None]) -> Resource | _Unknown | None:
    """The replacement for an unreadable restriction, None for other kinds."""
    spec = value.get("spec")
    if kind in _ROUTES and isinstance(spec, dict):
        return _closed_route(kind, value, spec, tell)
    if kind not in _CLOSED:
        return None
    targets = spec.get("targetRefs") if isinstance(spec, dict) else None
    made: Resource | None = _policy(kind, value, targets)
    if made is None:
        return _Unknown(kind, value, targets)
    tell(_problem(value, "", "its targets are closed until it can be read", "", Severity.UNSERVED))
    return made


def _closed_route(
    kind: type[Resource], value: dict[str, Any], spec: dict[str, Any], tell: Callable[[Problem], None]
) -> Resource | None:
    """A route without backends, with the readable matches of this one."""
    kept: dict[str, Any] = {name: spec[name] for name in ("parentRefs", "hostnames") if name in spec}
    rules = spec.get("rules")
    written = [each for each in rules if isinstance(each, dict)] if isinstance(rules, list) else []
    matches = [{"matches": each.get("matches", [])} for each in written]
    tried: tuple[list[Any], ...] = ([_NOWHERE],) if kind in _STREAMS else (matches, [{}])
    for closed in tried:
        if closed and (made := _stand_in(kind, value, {**kept, "rules": closed})) is not None:
            message = "it answers with errors, and closes connections, until it can be read"
            tell(_problem(value, "", message, "", Severity.UNSERVED))
            return made
    return None


def _policy(kind: type[Resource], value: dict[str, Any], targets: object) -> Any:
    """A policy that closes these targets, or None."""
    return _stand_in(kind, value, {"targetRefs": targets, **_CLOSED[kind]})


def _stand_in(kind: type[Resource], value: dict[str, Any], spec: dict[str, Any]) -> Resource | None:
    """The object with this spec, or None if it is invalid."""
    head = {name: value[name] for name in ("apiVersion", "kind", "metadata")}
    closed = {**head, "spec": spec}
    try:
        made = kind.model_validate(closed)
    except ValidationError:
        return None
    made.written(closed, CLUSTER_ORIGIN)
    return made


class _Unknown(NamedTuple):
    """A policy whose targets cannot be read."""

    kind: type[Resource]
    value: dict[str, Any]
    targets: object

    def closed(self, everything: Iterable[Resource], tell: Callable[[Problem], None]) -> Iterator[Resource]:
        """The policies that close all possible targets in its namespace, and its readable targets."""
        written = self.targets if isinstance(self.targets, list) else []
        refs = [each for each in written if _policy(self.kind, self.value, [each]) is not None]
        namespace = self.value["metadata"].get("namespace", "default")
        refs += [
            {"group": each.GROUP, "kind": each.KIND, "name": each.name}
            for each in everything
            if isinstance(each, TARGETS[self.kind]) and each.namespace == namespace
        ]
        parts = [_policy(self.kind, self.value, [ref]) for ref in refs]
        made = next(filter(None, parts), None)
        if made is not None:
            # May exceed the schema's limit of targets, each of which was checked.
            together = tuple(dict.fromkeys(ref for part in parts if part is not None for ref in part.spec.target_refs))
            whole = made.model_copy(update={"spec": made.spec.model_copy(update={"target_refs": together})})
            spec = {"targetRefs": refs, **_CLOSED[self.kind]}
            whole.written({**made.to_manifest(), "spec": spec}, CLUSTER_ORIGIN)
            yield whole
        message = "the targets cannot be read: all possible targets in the namespace of the policy are closed"
        tell(_problem(self.value, "spec.targetRefs", message, "correct or remove the policy", Severity.UNSERVED))


def _problems(error: ValidationError, kind: type[Resource], value: dict[str, Any]) -> Iterator[Problem]:
    for details in error.errors(include_url=False, include_input=True):
        path, _ = field_path(details["loc"])
        show, scalar = kind is not Secret, details["input"]
        written = (
            str(scalar) if show and isinstance(scalar, str | int | float) and not isinstance(scalar, bool) else None
        )
        message, remedy = explain(details, kind, path, written, show)
        yield _problem(value, path_text(path), message, remedy, Severity.UNSERVED)


def _problem(value: dict[str, Any], field: str, message: str, remedy: str, severity: Severity) -> Problem:
    metadata = value["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else metadata["name"]
    return Problem("", 0, 0, f"{value['kind']} {name}", field, message, remedy, severity, CANNOT_BE_READ)
