"""CustomResourceDefinitions of our own kinds, from the models that read manifests and the OpenAPI document of the API.

A schema here is never stricter than the models: a cluster accepts every valid file. Status reports faults that a schema
cannot express, as for files. Source: Kubernetes, "Extend the Kubernetes API with CustomResourceDefinitions" (structural
schemas, defaulting and nullable, validation rules, merge strategy); KEP-2876 (CEL).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from egressproxy.config.resources.destination import BackendDestination
from egressproxy.config.resources.kinds import KINDS
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.spellings import RULES, TYPES
from egressproxy.config.schema import json_schema, models_by_name
from egressproxy.config.served_kinds import CONFIGURED, OURS, ServedKind
from egressproxy.kubeapi.openapi import FREE, V3, kind_schemas, part_of
from egressproxy.kubeapi.read.columns import columns
from egressproxy.kubeapi.write.patches import Shape, shape_of

#: Our own kinds, in the order in which they are printed.
OUR_KINDS: Final = tuple(kind for kind in CONFIGURED if kind.group == OURS)

#: Model -> fields without a default in the schema ("*": all), since their presence has a meaning: a conflict with other
#: fields, or an override of a wider policy.
_SAY_BY_BEING_THERE: Final[Mapping[str, frozenset[str]]] = {
    "BackendParent": frozenset({"*"}),
    "BackendPort": frozenset({"protocol"}),
    "BackendTls": frozenset({"minVersion"}),
    "Dns": frozenset({"*"}),
    "Limits": frozenset({"maxKeys"}),
    "Rate": frozenset({"window"}),
}

#: Kind -> column -> path of its cell. Columns without such a path are left out.
_PATHS: Final[Mapping[str, Mapping[str, str]]] = {
    "Backend": {
        "Type": ".spec.destination.type",
        "Destination": ".spec.destination['fqdn.hostname','ip.address','service.name','kubernetesService.name']",
        "Accepted": '.status.conditions[?(@.type=="Accepted")].status',
        "Ports": ".spec.destination.ports[*].number",
        "ResolvedRefs": '.status.conditions[?(@.type=="ResolvedRefs")].status',
        "Degraded": '.status.conditions[?(@.type=="Degraded")].status',
    },
    "EgressPolicy": {
        "Mode": ".spec.mode",
        "Targets": ".spec.targetRefs[*].name",
        "Accepted": '.status.ancestors[*].conditions[?(@.type=="Accepted")].status',
        "Reason": '.status.ancestors[*].conditions[?(@.type=="Accepted")].reason',
        "Degraded": '.status.ancestors[*].conditions[?(@.type=="Degraded")].status',
    },
    "FilterType": {
        "Type": ".spec.type",
        "Accepted": '.status.conditions[?(@.type=="Accepted")].status',
        "Phases": ".spec.phases",
    },
    "PayloadProcessingPipeline": {
        "Processors": ".spec.processors[*].name",
        "Accepted": '.status.conditions[?(@.type=="Accepted")].status',
    },
}


def crd(kind: ServedKind) -> dict[str, Any]:
    """The CustomResourceDefinition of one of OUR_KINDS, whose only version is served and stored."""
    (version,) = kind.versions
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource},
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": list(kind.short_names),
                "categories": list(kind.categories),
            },
            "scope": "Namespaced" if kind.is_namespaced else "Cluster",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root(kind, version)},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(kind),
                }
            ],
        },
    }


def _columns(kind: ServedKind) -> list[dict[str, Any]]:
    """Those of the API, but for the name, which every server adds."""
    paths = _PATHS[kind.kind]
    made = []
    for column in columns(kind.group, kind.kind):
        path = ".metadata.creationTimestamp" if column.is_age else paths.get(column.name)
        if path is not None:
            words = f"{column.description} The first of them." if "[*]" in path else column.description
            shown = {"name": column.name, "type": "date" if column.is_age else column.type, "jsonPath": path}
            made.append({**shown, "description": words, **({"priority": 1} if column.is_wide else {})})
    return made


# --- schemas ---------------------------------------------------------------------------------------------------------


def _root(kind: ServedKind, version: str) -> dict[str, Any]:
    model = next(each for each in KINDS if kind.group == each.GROUP and kind.kind == each.KIND)
    schema = json_schema((model,))
    _mark(schema["$defs"], model)
    parts = kind_schemas(((kind, version),), schema, V3)
    root = _whole({"$ref": V3 + part_of(kind, version)}, parts, shape_of(kind.group, kind.kind), ())
    root["properties"] |= {"metadata": {"type": "object"}, "status": _status(kind)}
    root["required"] = ["spec"]
    return root


def _mark(parts: Mapping[str, dict[str, Any]], kind: type[Resource]) -> None:
    """Settle the defaults, and what null means.

    A server takes a field that is null away, unless the field is nullable. So is every field for which the models take
    null for something else than a field that is left out: the gateway sees it then, and refuses it or understands it.
    """
    models = models_by_name()
    for name, part in parts.items():
        above = [each.__name__ for each in models[name].__mro__] if name in models else []
        silent = frozenset().union(*(_SAY_BY_BEING_THERE.get(each, ()) for each in above))
        for field, shape in part.get("properties", {}).items():
            default = shape.get("default")
            is_optional = field not in part.get("required", ())
            takes_null = any(each.get("type") == "null" for each in shape.get("anyOf", ()))
            if not kind.NULLS_ARE_ABSENT and is_optional and not (takes_null and default is None):
                shape["nullable"] = True
            for shaped in (shape, *shape.get("anyOf", ())) if kind.NULLS_ARE_ABSENT else ():
                for values in (shaped.get("additionalProperties"), *shaped.get("patternProperties", {}).values()):
                    if isinstance(values, dict):
                        values["nullable"] = True  # a server keeps null in a map, and would refuse it
            if default in (None, "", [], {}) or isinstance(default, dict) or silent & {"*", field}:
                shape.pop("default", None)


#: What a schema of a CustomResourceDefinition may have. `$ref`, `anyOf` and descriptions of support are worked in.
_KEPT: Final = (
    "description", "type", "nullable", "enum", "default", "format", "pattern", "minimum", "exclusiveMinimum", "maximum",
    "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "required", "x-kubernetes-int-or-string", FREE,
    RULES,
)  # fmt: skip
_PART: Final = "io.egressproxy.parts."


def _whole(
    field: Mapping[str, Any], parts: Mapping[str, Any], shape: Shape, names: tuple[str, ...], model: str = ""
) -> dict[str, Any]:
    """A field with what it refers to in its place. `names` lead to it from the object, through lists, too."""
    reference = field.get("$ref") or next((each["$ref"] for each in field.get("allOf", ())), None)
    if reference is not None:
        name = str(reference).removeprefix(V3)
        beside = {key: value for key, value in field.items() if key not in ("$ref", "allOf")}
        return _whole({**parts[name], **beside}, parts, shape, names, name.removeprefix(_PART))
    made = {key: field[key] for key in _KEPT if key in field}
    if rules := _MODEL_RULES.get(model):
        made[RULES] = [{"rule": rule, "message": message} for rule, message in rules]
    if "properties" in field:
        made["properties"] = {
            name: _whole(each, parts, shape, (*names, name)) for name, each in field["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if key in field:
            made[key] = _whole(field[key], parts, shape, names)
    if made.get("type") == "object" and not made.keys() & {"properties", "additionalProperties"}:
        made[FREE] = True
    keys = shape.get(names, ())
    if "items" in made and keys and set(keys) <= set(made["items"].get("required", ())):
        made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    return made


# --- rules between fields --------------------------------------------------------------------------------------------


def _at_most_one(*fields: str) -> str:
    return f"[{', '.join(fields)}].filter(given, given).size() <= 1"


def _of_destinations() -> tuple[tuple[str, str], ...]:
    """Each block belongs to its own type, which has several spellings in any case, and needs it."""
    made = []
    for type_, blocks in BackendDestination.BLOCKS.items():
        spellings = ", ".join(f"'{spelling}'" for spelling, means in TYPES.items() if means == type_)
        if blocks:
            there = " || ".join(f"has(self.{block})" for block in blocks)
            message = f"{' or '.join(blocks)} is for type {type_}, which needs it"
            made.append((f"({there}) == (self.type.lowerAscii() in [{spellings}])", message))
    made.append((_at_most_one("has(self.service)", "has(self.kubernetesService)"), "keep service alone"))
    return tuple(made)


_MUTUAL: Final = "clientCertificateRef is for mode Mutual, which needs it"
_DATA_PLANE: Final = "has(self.{0}) == (has(self.type) && self.type == '{1}')"
#: Model -> rules with messages. They are only below bounded lists: a server estimates the cost of the rules for the
#: longest object, and refuses an expensive definition. `namespace` is reserved in CEL, and escaped. Defaults are
#: applied first.
_MODEL_RULES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "BackendDestination": _of_destinations(),
    "BackendSpec": (
        (
            _at_most_one(
                "has(self.tls)",
                "has(self.destination.tls)",
                "has(self.destination.fqdn) && has(self.destination.fqdn.tls)",
            ),
            "tls for all ports stands at one of tls, destination.tls and destination.fqdn.tls",
        ),
    ),
    "BackendPort": (("has(self.number) != has(self.port)", "a port has number (or port, which is the same)"),),
    "BackendTls": (("has(self.clientCertificateRef) == (self.mode.lowerAscii() == 'mutual')", _MUTUAL),),
    "FqdnTls": (
        ("!has(self.mode) || has(self.clientCertificateRef) == (self.mode.lowerAscii() == 'mutual')", _MUTUAL),
    ),
    "BackendObjectReference": (
        (
            "has(self.port) || (has(self.group) && self.group != '') || (has(self.kind) && self.kind != 'Service')",
            "a reference to a Service has to name a port; for a Backend write group: egressproxy.io, kind: Backend",
        ),
    ),
    "BackendParent": (
        (
            "(has(self.direct) && self.direct) != (has(self.name) && self.name != '')",
            "a parent has the name of a Backend, or direct: true",
        ),
    ),
    "ParentProxyRef": (("has(self.name) && self.name != ''", "a parent has the name of a Backend"),),
    "Processor": (
        (
            "has(self.type) != (has(self.backendRefs) && self.backendRefs.size() > 0)",
            "a processor has either type or backendRefs",
        ),
    ),
    "FilterTypeSpec": (("has(self.python) != has(self.processor)", "a FilterType has either python or processor"),),
    "ConfigSchema": (("has(self.inline) != has(self.configMapRef)", "a configSchema has inline or configMapRef"),),
    "Subject": (
        (
            "has(self.__namespace__) || has(self.group) || has(self.claim)",
            "a subject needs namespace, group or claim",
        ),
        (
            "has(self.__namespace__) || !(has(self.serviceAccount) || has(self.trustDomain))",
            "serviceAccount and trustDomain need namespace",
        ),
    ),
    "InterceptSubject": (
        (
            "has(self.__namespace__) || has(self.group) || has(self.claim) || has(self.identity)",
            "a subject needs namespace, group, claim or identity",
        ),
        ("has(self.__namespace__) || !has(self.serviceAccount)", "serviceAccount needs namespace"),
    ),
    "Intercept": (
        (
            "has(self.caCertificateRef) || (has(self.bySubject) && self.bySubject.size() > 0) || has(self.issuing)",
            "intercept needs caCertificateRef, bySubject or issuing",
        ),
    ),
    "CertificateClient": (
        (
            "[has(self.subject), has(self.dnsName), has(self.uri), has(self.email)].filter(each, each).size() == 1",
            "write one of subject, dnsName, uri and email",
        ),
    ),
    "TokenIssuer": (("has(self.jwksRef) != has(self.jwksURI)", "write one of jwksRef and jwksURI"),),
    "LimitStore": (
        ("self.type != 'Redis' || has(self.backendRef)", "a store of type Redis needs backendRef"),
    ),
    "ConsistentHash": (
        (_DATA_PLANE.format("header", "Header"), "header is for type Header, which needs it"),
        (_DATA_PLANE.format("cookie", "Cookie"), "cookie is for type Cookie, which needs it"),
    ),
    "LoadBalancer": (
        (
            _DATA_PLANE.format("consistentHash", "ConsistentHash"),
            "consistentHash is for type ConsistentHash, which needs it",
        ),
    ),
    "ActiveHealthCheck": (
        ("!has(self.http) || self.type == 'HTTP'", "http is for type HTTP"),
        ("!has(self.grpc) || self.type == 'GRPC'", "grpc is for type GRPC"),
    ),
}  # fmt: skip


# --- status ----------------------------------------------------------------------------------------------------------

_TEXT: Final = {"type": "string"}
#: metav1.Condition.
_CONDITION: Final = {
    "type": "object",
    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
    "properties": {
        "type": {**_TEXT, "maxLength": 316, "description": "What is said, such as Accepted or ResolvedRefs."},
        "status": {**_TEXT, "enum": ["True", "False", "Unknown"], "description": "Whether it holds."},
        "observedGeneration": {"type": "integer", "format": "int64", "description": "Of which metadata.generation."},
        "lastTransitionTime": {**_TEXT, "format": "date-time", "description": "When `status` changed last."},
        "reason": {**_TEXT, "minLength": 1, "maxLength": 1024, "description": "Why, in one word."},
        "message": {**_TEXT, "maxLength": 32768, "description": "Why, for people."},
    },
}
_CONDITIONS: Final = {
    "type": "array",
    "description": "What became of the object: Accepted says whether it is in force.",
    "items": _CONDITION,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}
#: PolicyAncestorStatus of Gateway API v1. The list is one value there, too.
_ANCESTORS: Final = {
    "type": "array",
    "description": "What became of the policy at each of its targets.",
    "items": {
        "type": "object",
        "required": ["ancestorRef", "controllerName", "conditions"],
        "properties": {
            "ancestorRef": {
                "type": "object",
                "description": "The target, as spec.targetRefs or the filter of a route names it.",
                "required": ["name"],
                "properties": {
                    "group": {**_TEXT, "description": "API group of the target."},
                    "kind": {**_TEXT, "description": "Kind of the target."},
                    "namespace": {**_TEXT, "description": "Namespace of the target."},
                    "name": {**_TEXT, "description": "Name of the target."},
                    "sectionName": {**_TEXT, "description": "The listener, rule or port."},
                    "port": {"type": "integer", "format": "int32", "description": "The port."},
                },
            },
            "controllerName": {**_TEXT, "description": "Who wrote this."},
            "conditions": _CONDITIONS,
        },
    },
}


_COUNTS: Final = {
    name: {"type": "integer", "format": "int64", "description": text}
    for name, text in (
        ("decisions", "Decisions that were made again."), ("wouldDeny", "How many of them would be denied."),
        ("wouldAllow", "How many of them would be allowed."),
    )
}  # fmt: skip
_TRIAL: Final[dict[str, Any]] = {
    "type": "object",
    "description": "What would come out otherwise if the policy were in force in place of another one.",
    "properties": {
        "replaces": {**_TEXT, "description": "The policy in force."},
        "since": {**_TEXT, "format": "date-time", "description": "The begin of the trial."},
        **_COUNTS,
        "lastFlip": {**_TEXT, "format": "date-time", "description": "When the last of these came."},
        "lastRequest": {**_TEXT, "description": "The last of these."},
        "digest": {**_TEXT, "description": "Of the policies: the trial begins anew when it changes."},
        "until": {**_TEXT, "format": "date-time", "description": "When a gateway has looked last."},
        "unseenSeconds": {
            "type": "integer",
            "format": "int64",
            "description": "Time since the last of these in which no gateway has looked, and which is not quiet.",
        },
        "days": {
            "type": "array",
            "description": "The same by day (UTC).",
            "items": {"type": "object", "properties": {"date": {**_TEXT, "description": "The day."}, **_COUNTS}},
        },
    },
}


def _status(kind: ServedKind) -> dict[str, Any]:
    ancestors = {"ancestors": _ANCESTORS, "trial": _TRIAL} if kind.kind == "EgressPolicy" else {}
    return {
        "type": "object",
        "description": "What became of the object: written by the gateway.",
        "properties": {**ancestors, "conditions": _CONDITIONS},
    }
