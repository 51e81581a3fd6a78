"""Outline: a ConfigIR as named objects with fields, in the words of the resource model: for people, and comparisons.

What has its default is left out. A Secret is "set" and no more; a certificate is its digest. The policy of a rule or of
a backend is shown as far as it differs from that of the listener.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any, Final

from egressproxy.ir.backend import BackendIR
from egressproxy.ir.gateway import ConfigIR, ListenerIR, VariantIR
from egressproxy.ir.policy import ExtensionIR, PolicyIR
from egressproxy.ir.route import HttpRouteIR, HttpRuleIR, StreamRouteIR, WeightedBackend
from egressproxy.model.secret import SecretBytes

#: Field (dotted, as written in manifests) to value: text, or a list of texts.
Values = dict[str, str | list[str]]
#: Object ("Kind namespace/name …") to its fields.
Outline = dict[str, Values]

#: Longer text, or text of several lines (certificates), is shown by its digest.
MAX_TEXT: Final = 240
_WORD = re.compile(r"_(\w)")
#: Where a field of a spec has another name in manifests, or stands at another place.
_NAMES: Final = {
    "kept": "traffic.connections",
    "timeouts": "traffic.timeouts", "request_s": "timeouts.request", "backend_request_s": "timeouts.backendRequest",
    "auths": "externalAuth", "max_body": "forwardBody.maxSize", "session": "sessionPersistence",
    "ca_pem": "caBundle", "sources": "policies", "insecure_skip_verify": "insecureSkipVerify",
    "trusted_pem": "trustedCertificates",
    "parent_credentials": "parent.credentialsRef", "parent_dns": "parent.dns",
    "parent_identity_key": "parent.identityKeyRef",
    "no_proxy": "parent.noProxy",
    "is_required": "required", "key_set": "jwks", "token_field": "header", "senders": "proxyProtocol.from",
}  # fmt: skip
#: What stands in objects of its own, or is said in another way.
_APART: Final = frozenset(
    {
        "http_routes", "tls_routes", "tcp_routes", "default_backend", "extensions", "backends", "rules",
        "gateway", "parent", "other_parents", "folder", "settings", "scope", "name", "named", "place", "variants",
        "denied_names",
    }
)  # fmt: skip


def outline(config: ConfigIR) -> Outline:
    """Every listener, route, rule and backend that is served."""
    made: Outline = {}
    for listener in config.listeners:
        place = f"{listener.gateway}/{listener.name}"
        _add_listener(made, listener, place)
        for variant in listener.variants:
            _add_variant(made, variant, place)
    return made


def _add_listener(made: Outline, listener: ListenerIR, place: str) -> None:
    common = dict(_policy(listener.policy))
    own = made[f"Listener {place}"] = {**dict(_fields(listener)), **common, **_filters(listener.extensions)}
    if listener.default_backend is not None:
        own |= _backends(made, (listener.default_backend,), common, place)
    for route in listener.http_routes:
        _add_route(made, route, common, place)
    for stream in (*listener.tls_routes, *listener.tcp_routes):
        _add_stream(made, stream, common, place)


def _add_variant(made: Outline, variant: VariantIR, place: str) -> None:
    """What is otherwise for the clients of a variant than for others."""
    own: Outline = {}
    _add_listener(own, variant.listener, place)
    clients = f", for subjects of {', '.join(sorted(variant.policies))}"
    made |= {f"{name}{clients}": values for name, values in own.items() if made.get(name) != values}


def _add_route(made: Outline, route: HttpRouteIR, common: Mapping[str, Any], place: str) -> None:
    made[f"{route.kind} {route.name} on {place}"] = dict(_fields(route))
    for position, rule in enumerate(route.rules):
        made[f"{route.kind} {route.name} rule {rule.index or position} on {place}"] = _rule(made, rule, common, place)


def _add_stream(made: Outline, stream: StreamRouteIR, common: Mapping[str, Any], place: str) -> None:
    made[f"{stream.kind} {stream.name} on {place}"] = {
        **dict(_fields(stream)), **_rest(_policy(stream.policy), common), **_filters(stream.extensions),
        **_backends(made, stream.backends, common, place),
    }  # fmt: skip


def _rule(made: Outline, rule: HttpRuleIR, common: Mapping[str, Any], place: str) -> Values:
    named: Values = {"name": rule.name} if rule.name else {}
    asked = [auth.backend for auth in rule.auths]
    return {
        **named, **dict(_fields(rule)), **_rest(_policy(rule.policy), common), **_filters(rule.extensions),
        **_backends(made, rule.backends, common, place),
        **_own(made, (*asked, *(each.backend for each in rule.mirrors)), common, place),
    }  # fmt: skip


def _backends(made: Outline, backends: Sequence[WeightedBackend], common: Mapping[str, Any], place: str) -> Values:
    """The references of one rule; the backends themselves are objects of their own."""
    refs = []
    for each in backends:
        share = f"weight {each.weight}"
        if each.failover is not None:
            share += f", priority {each.priority} of Failover {_text(each.failover)}"
            if each.model_alias:
                share += f", asked for model {each.model_alias}"
            for asked, sent in each.model_aliases:
                share += f", asked for model {sent} in place of {asked}"
        if each.backend is not None:
            refs.append(f"{each.backend.name}, {share}")
        else:
            refs.append(f"cannot be used, {share}: {each.error}")
    return {"backendRefs": refs, **_own(made, backends, common, place)} if refs else {}


def _own(made: Outline, backends: Sequence[WeightedBackend], common: Mapping[str, Any], place: str) -> Values:
    """What holds for single backends of a rule, mirrors and authorization servers among them; adds them as objects."""
    found: Values = {}
    for weighted in backends:
        backend = weighted.backend
        if backend is None:
            continue
        if weighted.mirrors:
            found[f"backend {backend.name}: mirrors"] = [_text(each) for each in weighted.mirrors]
            found |= _own(made, [each.backend for each in weighted.mirrors], common, place)
        for path, value in (*_rest(_policy(weighted.policy), common).items(), *_filters(weighted.extensions).items()):
            found[f"backend {backend.name}: {path}"] = value
        _add_backend(made, backend, place)
    return found


def _add_backend(made: Outline, backend: BackendIR, place: str) -> None:
    """The backend, and the proxies that it is reached through: another proxy is another way for all of it."""
    values = dict(_fields(backend))
    if backend.parent is not None:
        values["parent"] = backend.parent.name
        values["parent.fallbacks"] = [each.backend.name for each in backend.other_parents]
        for parent in (backend.parent, *(each.backend for each in backend.other_parents)):
            _add_backend(made, parent, place)
    if made.setdefault(f"Backend {backend.name}", values) != values:
        made[f"Backend {backend.name} on {place}"] = values


def _policy(policy: PolicyIR) -> Iterator[tuple[str, str | list[str]]]:
    yield from _fields(policy)
    yield from _filters(policy.extensions).items()


def _rest(own: Iterator[tuple[str, str | list[str]]], common: Mapping[str, Any]) -> Values:
    return {path: value for path, value in own if common.get(path) != value}


def _filters(extensions: Sequence[ExtensionIR]) -> Values:
    return {"filters": [_filter(each) for each in extensions]} if extensions else {}


def _filter(each: ExtensionIR) -> str:
    secrets = "".join(f", Secret {name}" for name, _ in each.secrets)
    fail_open = ", failOpen" if each.fail_open else ""
    if not each.is_known:
        fail_open = ", of an unknown type: left out (failOpen)"
    return (
        f"{each.phase} {each.name} ({each.type}) of {each.source}, priority {each.priority}{fail_open}{secrets}: "
        f"{_text(each.config)}"
    )


def _fields(spec: Any, prefix: str = "") -> Iterator[tuple[str, str | list[str]]]:
    """The fields of an IR value that differ from their defaults; those of values inside it as dotted paths."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name in _APART or not field.compare or value == field.default or isinstance(value, PolicyIR):
            continue
        path = prefix + _name(field.name)
        if isinstance(value, WeightedBackend):
            yield path, value.backend.name if value.backend is not None else f"cannot be used: {value.error}"
        elif is_dataclass(value) and not isinstance(value, type):
            if field.default is None:
                yield path, "given"
            yield from _fields(value, f"{path}.")
        elif field.name == "auths":
            for number, each in enumerate(value):
                at = f"{path}[{number}]" if number else path
                yield at, "given"
                yield from _fields(each, f"{at}.")
        elif isinstance(value, tuple):
            yield path, [_text(item) for item in _flat(value)]
        else:
            yield path, _text(value)


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    """Groups of entries, one for each level of policies, in one row."""
    for value in values:
        if isinstance(value, tuple) and value and all(is_dataclass(item) for item in value):
            yield from value
        else:
            yield value


def _text(value: Any) -> str:
    if isinstance(value, SecretBytes):
        return "set"
    if isinstance(value, Enum):
        return str(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        said = (f"{path}: {text if isinstance(text, str) else ' '.join(text)}" for path, text in _fields(value))
        return ", ".join(filter(None, (getattr(value, "name", ""), *said))) or "default"
    if isinstance(value, tuple | frozenset):
        texts = [_text(item) for item in value]
        return " ".join(texts if isinstance(value, tuple) else sorted(texts))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if len(text) > MAX_TEXT or "\n" in text:
        return f"digest {blake2b(text.encode(), digest_size=8).hexdigest()}"
    return text


def _name(field: str) -> str:
    return _NAMES.get(field) or _WORD.sub(lambda found: found[1].upper(), field.removesuffix("_s"))
