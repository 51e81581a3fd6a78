"""Enum values of published Backends, in each of their spellings: read into the one that the rest of the code knows.

They are compared without regard to case; what is none of them is an error that names the nearest.
Source: the AI Gateway working group's egress proposal in its versions.
"""

import re
from typing import Annotated

from pydantic import PlainValidator
from pydantic import WithJsonSchema as JsonSchema

from egressproxy.config.resources.values import RefusedValue, text_schema
from egressproxy.ir.backend import Protocol
from egressproxy.model.near_names import did_you_mean

#: The key of a schema under which a CustomResourceDefinition has its rules in CEL.
RULES = "x-kubernetes-validations"

#: Of destinations, in lower case, and what they mean.
TYPES = {
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
#: A value of a vendor's own, as in `example.com/x`.
_VENDOR = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9][-._/A-Za-z0-9]*")
_MAX_NAME = 256


def known_or_vendors(what: str, spellings: dict[str, str]) -> PlainValidator:
    """Reads what is known in its usual spelling, and a vendor's own as it is; anything else is a RefusedValue."""
    names = tuple(dict.fromkeys(spellings.values()))

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise RefusedValue(f"a {what} is text", f"write {what}: {names[0]}")
        name = spellings.get(value.lower(), value)
        if name in names or (len(value) <= _MAX_NAME and _VENDOR.fullmatch(value)):
            return name
        possible = f"possible are {', '.join(names)}, and example.com/x"
        raise RefusedValue(f"not a {what}", did_you_mean(value, names, possible))

    return PlainValidator(read)


def in_any_case(what: str, spellings: dict[str, str]) -> list[dict[str, str]]:
    """The rule of a CustomResourceDefinition that says the same, in CEL: a pattern would have each letter twice."""
    known = ", ".join(f"'{spelling}'" for spelling in spellings)
    possible = ", ".join(dict.fromkeys(spellings.values()))
    rule = f"self.lowerAscii() in [{known}] || self.matches(r'^{_VENDOR.pattern}$')"
    return [{"rule": rule, "message": f"not a {what}: possible are {possible}, in any case, and example.com/x"}]


def is_vendors(value: object) -> bool:
    """Whether a value that is known or a vendor's is a vendor's."""
    return isinstance(value, str) and "/" in value


def vendors_too(what: str, *values: str) -> tuple[PlainValidator, JsonSchema]:
    """For `Annotated[str, *...]`: one of these values as it stands here, or a vendor's own with its prefix."""
    schema = text_schema("|".join((*values, _VENDOR.pattern)), _MAX_NAME, *values)
    return known_or_vendors(what, {value: value for value in values}), schema


#: One of the known protocols in its usual spelling, or a vendor's with its prefix.
ProtocolName = Annotated[
    str,
    known_or_vendors("protocol", _PROTOCOLS),
    JsonSchema(
        {
            "type": "string",
            "maxLength": _MAX_NAME,
            "default": "HTTP",
            "description": f"What is spoken there: {', '.join(_PROTOCOLS.values())}; in any case. A vendor's own is "
            "written with a prefix, as in example.com/x, and is not served.",
            RULES: in_any_case("protocol", _PROTOCOLS),
        }
    ),
]

#: How a backend is spoken to, in one of the published spellings, or a vendor's with its prefix.
ModeName = Annotated[
    str,
    known_or_vendors("mode", _MODES),
    JsonSchema(
        {
            "type": "string",
            "maxLength": _MAX_NAME,
            "description": "How the backend is spoken to: None, Simple or Mutual, in any case. PLATFORM_PROVIDED is "
            "Simple, INSECURE_DISABLE is None. Passthrough and Terminate are the listener's business, and a vendor's "
            "own is written with a prefix, as in example.com/x: a port that says so is not served.",
            RULES: in_any_case("mode", _MODES),
        }
    ),
]

#: What kind of place a destination is, in one of the published spellings.
TypeName = Annotated[
    str,
    known_or_vendors("type", TYPES),
    JsonSchema(
        {
            "type": "string",
            "maxLength": _MAX_NAME,
            "description": "What kind of place it is: Fqdn, Ip, Service, Dynamic or Failover, in any case. FQDN is "
            "Fqdn, IPAddress is Ip, KubernetesService is Service. EndpointSelector is not served, nor is a vendor's "
            "own, which is written with a prefix, as in example.com/x.",
            RULES: in_any_case("type", TYPES),
        }
    ),
]
