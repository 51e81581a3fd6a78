"""Enum values of published Backends, in each of their spellings: read into the one that the rest of the code knows.

They are compared without regard to case; what is none of them is an error that names the nearest.
Source: the AI Gateway working group's egress proposal in its versions.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, PlainValidator
from pydantic import WithJsonSchema as JsonSchema

from egressproxy.config.resources.values import RefusedValue
from egressproxy.ir.backend import Protocol
from egressproxy.model.near_names import did_you_mean

_TYPES = {
    **{name.lower(): name for name in ("Fqdn", "Ip", "Service", "Dynamic", "Failover")},
    "ipaddress": "Ip",
    "kubernetesservice": "Service",
    "endpointselector": "EndpointSelector",
}
_MODES = {
    **{name.lower(): name for name in ("None", "Simple", "Mutual", "Passthrough", "Terminate")},
    "platform_provided": "PlatformProvided",
    "platformprovided": "PlatformProvided",
    "insecure_disable": "InsecureDisable",
    "insecuredisable": "InsecureDisable",
}
#: What a port may say beside the protocols that are spoken: HTTP over TLS in two spellings, and agents' HTTP.
_PROTOCOLS = {name.lower(): name for name in (*(each.value for each in Protocol), "TLS", "HTTPS", "A2A")}
#: A protocol of a vendor's own, as in `example.com/x`.
_VENDOR = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9][-._/A-Za-z0-9]*")
_MAX_PROTOCOL = 256


def _spelled(spellings: dict[str, str]) -> BeforeValidator:
    """Reads an enum value in any of its published spellings, without regard to case."""
    return BeforeValidator(lambda value: spellings.get(value.lower(), value) if isinstance(value, str) else value)


def _enum(description: str, *values: str) -> JsonSchema:
    return JsonSchema({"type": "string", "enum": list(values), "description": description})


def _protocol(value: object) -> str:
    """In its usual spelling. Raises RefusedValue for what is neither known nor a vendor's."""
    if not isinstance(value, str):
        raise RefusedValue("a protocol is text", "write protocol: HTTP")
    name = _PROTOCOLS.get(value.lower(), value)
    if name in _PROTOCOLS.values():
        return name
    if len(value) <= _MAX_PROTOCOL and _VENDOR.fullmatch(value):
        return value
    possible = f"possible are {', '.join(_PROTOCOLS.values())}, and example.com/x"
    raise RefusedValue("not a protocol", did_you_mean(value, _PROTOCOLS.values(), possible))


#: One of the known protocols in its usual spelling, or a vendor's with its prefix.
ProtocolName = Annotated[
    str,
    PlainValidator(_protocol),
    JsonSchema(
        {
            "type": "string",
            "maxLength": _MAX_PROTOCOL,
            "default": "HTTP",
            "description": f"What is spoken there: {', '.join(_PROTOCOLS.values())}; in any case. A vendor's own is "
            "written with a prefix, as in example.com/x, and is not served.",
        }
    ),
]

#: How a backend is spoken to, in one of the published spellings.
ModeName = Annotated[
    Literal["None", "Simple", "Mutual", "PlatformProvided", "InsecureDisable", "Passthrough", "Terminate"],
    _spelled(_MODES),
    _enum(
        "How the backend is spoken to, in any case. PLATFORM_PROVIDED is Simple, INSECURE_DISABLE is None. "
        "Passthrough and Terminate are the listener's business: a port that says so is not served.",
        "None", "Simple", "Mutual", "NONE", "SIMPLE", "MUTUAL", "PLATFORM_PROVIDED", "PlatformProvided",
        "INSECURE_DISABLE", "InsecureDisable", "PASSTHROUGH", "Passthrough", "Terminate",
    ),
]  # fmt: skip

#: What kind of place a destination is, in one of the published spellings.
TypeName = Annotated[
    Literal["Fqdn", "Ip", "Service", "Dynamic", "Failover", "EndpointSelector"],
    _spelled(_TYPES),
    _enum(
        "What kind of place it is, in any case. FQDN is Fqdn, IPAddress is Ip, KubernetesService is Service. "
        "EndpointSelector is not served.",
        "Fqdn", "Ip", "Service", "Dynamic", "Failover", "FQDN", "IP", "IPAddress", "KubernetesService",
        "EndpointSelector",
    ),
]  # fmt: skip
