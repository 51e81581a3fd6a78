"""Objects that come from a cluster, as JSON, one in a line.

An API server has checked them against the schemas that it has, which may be older than ours, and other people write
them. So one that cannot be read takes no other with it: it is left out and told. What it would have restricted stays
closed: an EgressPolicy that cannot be read denies everything at its targets, and a BackendTLSPolicy trusts nobody.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from pydantic import ValidationError

from egressproxy.config.explanations import explain, field_path, path_text
from egressproxy.config.reading.problems import Problem, Severity
from egressproxy.config.resources.backend import BackendTlsPolicy
from egressproxy.config.resources.core import Secret
from egressproxy.config.resources.destination import PUBLISHED
from egressproxy.config.resources.kinds import kind_class
from egressproxy.config.resources.meta import OUR_GROUP, Origin, Resource, without_nulls
from egressproxy.config.resources.policy import EgressPolicy

#: Written by somebody who is trusted with less than a file of the operator's.
_ORIGIN: Final = Origin(is_from_api=True)
#: In place of what cannot be read: nothing may leave, and no certificate is good.
_CLOSED: Final[dict[type[Resource], dict[str, Any]]] = {
    EgressPolicy: {
        "destinations": {"deny": [{"cidrs": ["0.0.0.0/0", "::/0"]}]},
        # Of a type that nobody knows: what would run it stays closed, a parent's way, too.
        "extensions": [
            {"name": f"cannot-be-read-{phase}", "type": "invalid.example/CannotBeRead:v1", "phase": phase}
            for phase in ("request-headers", "connect")
        ],
    },
    BackendTlsPolicy: {
        "validation": {
            "hostname": "policy-cannot-be-read.invalid",
            "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "policy-cannot-be-read"}],
        }
    },
}


def cluster_objects(packed: bytes, tell: Callable[[Problem], None]) -> Iterator[Resource]:
    """The objects of `kubernetes.cluster_source`; `tell` is called for each that is not served as it is written."""
    for line in zlib.decompress(packed).split(b"\n"):
        if line:
            value: dict[str, Any] = json.loads(line)
            made = _read(value, tell)
            if made is not None:
                yield made


def _read(value: dict[str, Any], tell: Callable[[Problem], None]) -> Resource | None:
    kind = kind_class(value["apiVersion"], value["kind"], value.get("spec"))
    if kind is None:
        return None
    value = without_nulls(value) if kind.NULLS_ARE_ABSENT else value
    try:
        made = kind.model_validate(value, context={PUBLISHED: kind.GROUP != OUR_GROUP})
    except ValidationError as error:
        for problem in _problems(error, kind, value):
            tell(problem)
        return _closed(kind, value, tell)
    made.written(value, _ORIGIN)
    return made


def _closed(kind: type[Resource], value: dict[str, Any], tell: Callable[[Problem], None]) -> Resource | None:
    """What stands for a restriction that cannot be read, None for other kinds."""
    if kind not in _CLOSED:
        return None
    spec = value.get("spec")
    targets = spec.get("targetRefs") if isinstance(spec, dict) else None
    closed = {**value, "spec": {"targetRefs": targets, **_CLOSED[kind]}}
    try:
        made = kind.model_validate(closed)
    except ValidationError:
        severity = Severity.ERROR  # nobody knows what it would have closed
        tell(_problem(value, "spec.targetRefs", "what it restricts cannot be read", "mend it, or remove it", severity))
        return None
    made.written(closed, _ORIGIN)
    tell(_problem(value, "", "its targets are closed until it can be read", "", Severity.UNSERVED))
    return made


def _problems(error: ValidationError, kind: type[Resource], value: dict[str, Any]) -> Iterator[Problem]:
    for details in error.errors(include_url=False, include_input=True):
        path, _ = field_path(details["loc"])
        message, remedy = explain(details, kind, path, None, kind is not Secret)
        yield _problem(value, path_text(path), message, remedy, Severity.UNSERVED)


def _problem(value: dict[str, Any], field: str, message: str, remedy: str, severity: Severity) -> Problem:
    metadata = value["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else metadata["name"]
    return Problem("", 0, 0, f"{value['kind']} {name}", field, message, remedy, severity, "CannotBeRead")
