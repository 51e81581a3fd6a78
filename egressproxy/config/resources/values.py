"""Value types of manifests: durations, networks, ports, names.

Each is checked once, when the manifest is read, and is then a plain Python value. The error of an invalid value has the
fault and the remedy (`RefusedValue`); no value is repaired silently.
Sources: Gateway API v1 (SectionName), GEP-2257 (Duration), RFC 1123, RFC 9110.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
)
from pydantic import WithJsonSchema as JsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from egressproxy.identity.peers import TRUST_DOMAIN
from egressproxy.model.authority import IPAddress
from egressproxy.model.fields import TOKEN
from egressproxy.model.secret import SecretBytes


def check_unique(values: Iterable[object], what: str, where: str) -> None:
    """Raises RefusedValue for a duplicate value: "`what` x stands more than once in `where`"."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise RefusedValue(f"{what} {value} stands more than once in {where}", f"give each entry its own {what}")
        seen.add(value)


def require_own_block(what: str, own: str, blocks: Mapping[str, object], other_remedy: str = "") -> None:
    """Raises RefusedValue unless, of these fields, `own` alone is written. `what`: as in "protocol GRPC"."""
    for name, block in blocks.items():
        if name == own and block is None:
            raise RefusedValue(f"{what} needs {name}", f"add {name}")
        if name != own and block is not None:
            raise RefusedValue(f"{name} does not belong to {what}", f"remove {name}{other_remedy}")


def require_one_of(what: str, **blocks: object) -> None:
    """Raises RefusedValue unless exactly one of these two is not None. `what`: as in "a processor"."""
    if sum(block is not None for block in blocks.values()) != 1:
        either = " or ".join(blocks)
        is_none = all(block is None for block in blocks.values())
        raise RefusedValue(f"{what} has either {either}", f"add {either}" if is_none else "keep one of them")


class RefusedValue(ValueError):
    """An invalid value. `remedy` says what to write instead; neither text may hold a secret."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DURATION = re.compile(r"([0-9]{1,5}(h|m|s|ms)){1,4}")
_DURATION_PART = re.compile(r"([0-9]+)(ms|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
MAX_HOSTNAME = 253


@dataclass(frozen=True, slots=True)
class Duration:
    """A Gateway API duration (GEP-2257): `1h30m`, `500ms`, `0s`; at most four parts, never negative."""

    text: str
    seconds: float

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises RefusedValue for anything but GEP-2257 text."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and _DURATION.fullmatch(value):
            return cls(value, sum(int(n) * _SECONDS[unit] for n, unit in _DURATION_PART.findall(value)))
        if isinstance(value, str) and value.startswith("-"):
            raise RefusedValue("a duration cannot be negative", "write 0s to disable it")
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            raise RefusedValue("a duration needs a unit", f"write {value}s for seconds")
        raise RefusedValue("not a duration", "write it as 500ms, 5s, 1m or 1h30m")

    def __str__(self) -> str:
        return self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$", "examples": ["5s", "1h30m"]}


class NotNull:
    """An optional field that must not be null: a null would lift a restriction by accident."""

    @staticmethod
    def check(value: object) -> object:
        """The value itself. Raises RefusedValue."""
        if value is None:
            raise RefusedValue("nothing is written here", "write [] for an empty list, or remove the field")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        shapes = [each for each in made.get("anyOf", ()) if each != {"type": "null"}]
        return shapes[0] if len(shapes) == 1 else made


NOT_NULL = NotNull()


def _above_zero(value: Duration) -> Duration:
    if not value.seconds:
        raise RefusedValue("the time has to be above 0s", "write 1s, 1m or 1h")
    return value


PositiveDuration = Annotated[Duration, AfterValidator(_above_zero)]


def text_schema(pattern: str, longest: int, *examples: str) -> JsonSchema:
    """The JSON Schema of a text: never stricter than its validator, in the common syntax of Go, Python and ECMA 262."""
    more = {"examples": list(examples)} if examples else {}
    return JsonSchema({"type": "string", "maxLength": longest, "pattern": f"^({pattern})$", **more})


def _matching(form: re.Pattern[str], message: str, remedy: str) -> tuple[AfterValidator, JsonSchema]:
    """Text of at most 253 characters that has this form. For `Annotated[str, *...]`."""

    def check(value: str) -> str:
        """The value itself. Raises RefusedValue."""
        if len(value) > MAX_HOSTNAME or not form.fullmatch(value):
            raise RefusedValue(message, remedy)
        return value

    return AfterValidator(check), text_schema(form.pattern, MAX_HOSTNAME)


def _longest_prefix(address: str) -> int:
    """The longest prefix of this address's family; 0 for an invalid address."""
    try:
        return ip_address(address).max_prefixlen
    except ValueError:
        return 0


def _cidr(value: object) -> IPv4Network | IPv6Network:
    """A network; a bare address is the network of that address alone. Host bits are refused: they are ambiguous."""
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    if not isinstance(value, str):
        raise RefusedValue("not a network", "write it as text, such as 10.0.0.0/8")
    address, _, length = value.partition("/")
    try:
        network = ip_network(value, strict=False)
    except ValueError:
        if length.isdecimal() and (most := _longest_prefix(address)):
            raise RefusedValue(f"the prefix is longer than the {most} bits", f"write /{most} or less") from None
        raise RefusedValue("not a network in CIDR notation", "write it as 10.0.0.0/8 or 2001:db8::/32") from None
    if length and not length.isdecimal():
        raise RefusedValue("a network mask is written as a prefix length", f"write {network}")
    if length and ip_address(address) != network.network_address:
        raise RefusedValue("the address has bits set beyond the prefix", f"write {network}, or the address alone")
    return network


def _address(value: object) -> IPAddress:
    try:
        if isinstance(value, str):
            return ip_address(value.removeprefix("[").removesuffix("]") if value.startswith("[") else value)
        if not isinstance(value, int):
            return ip_address(value)  # type: ignore[arg-type]
    except ValueError:
        pass
    raise RefusedValue("not an IP address", "write it as 192.0.2.1 or 2001:db8::1")


def _header_name(value: str) -> str:
    if len(value) > 256 or not TOKEN.fullmatch(value.encode("utf-8")):
        raise RefusedValue("not a header name", "use letters, digits and !#$%&'*+-.^_`|~ (RFC 9110 section 5.6.2)")
    return value


#: RFC 8484: a host or an address, a port, a path, and the name that the certificate is for. No user, no template.
_HTTPS_SERVER = re.compile(
    r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[1-9][0-9]{0,4})?(?:/[!$-;=?-Z_a-z~]*)?(?:#[A-Za-z0-9.:-]+)?"
)


def _server_address(value: str) -> str:
    """A DNS server: `ip`, `ip:port`, `[ip6]:port`, `tls://ip[:port][#name]`, `https://host[:port][/path][#name]`."""
    scheme, separator, rest = value.rpartition("://")
    if separator and scheme not in ("udp", "tcp", "tls", "https"):
        raise RefusedValue("unknown DNS transport", "use udp://, tcp://, tls:// or https://, or the address alone")
    if scheme == "https":
        if not _HTTPS_SERVER.fullmatch(rest):
            remedy = "write https://192.0.2.1/dns-query#dns.example: an address, a path, and the name of the server"
            raise RefusedValue("not the URL of a DNS server", remedy)
        return value
    address, port = rest.partition("#")[0], "53"
    if (address.startswith("[") or address.count(":") == 1) and not address.endswith("]"):
        address, _, port = address.rpartition(":")
    try:
        _address(address)
    except RefusedValue:
        remedy = "write it as 192.0.2.1, 192.0.2.1:53 or [2001:db8::1]:53"
        if scheme == "tls":
            remedy = "write it as tls://192.0.2.1#dns.example: its address, and the name that its certificate is for"
        raise RefusedValue("a DNS server is named by its address", remedy) from None
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise RefusedValue("the port of the DNS server is not 1 to 65535", "write it as 192.0.2.1:53")
    return value


def _secret(value: object) -> SecretBytes:
    if isinstance(value, SecretBytes):
        return value
    if not isinstance(value, str):
        raise RefusedValue("not base64 text", "encode the value with base64, or write it as text under stringData")
    try:
        return SecretBytes(base64.b64decode("".join(value.split()), validate=True))
    except ValueError:
        raise RefusedValue("not base64", "encode the value with base64, or write it as text under stringData") from None


def _secret_text(value: object) -> SecretBytes:
    if isinstance(value, SecretBytes):
        return value
    if not isinstance(value, str):
        raise RefusedValue("not text", "quote the value")
    return SecretBytes(value.encode("utf-8", "surrogatepass"))


def _timestamp(value: str) -> str:
    """RFC 3339, kept as text: it sorts by age as long as it is UTC, which is how API servers write it."""
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise RefusedValue("not a timestamp", "write it as 2024-01-31T12:00:00Z (RFC 3339)") from None
    return value


def _client_text(value: str) -> str:
    """Text on one line that shows as it is written: no control, no direction of writing, no invisible character."""
    if not value.isprintable() or value != value.strip():
        raise RefusedValue(
            "the text has a line break, an invisible character, or a blank at an end",
            "write one line of plain text, such as: Ask #netops for access",
        )
    return value


def _redacted(_value: SecretBytes) -> str:
    return base64.b64encode(b"redacted").decode()


#: Kubernetes takes an explicit null for an empty map or list.
NULL_IS_EMPTY_MAP = BeforeValidator(lambda value: {} if value is None else value)
NULL_IS_EMPTY_LIST = BeforeValidator(lambda value: () if value is None else value)

Bool = Annotated[bool, Field(strict=True)]
Int = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Percent = Annotated[int, Field(strict=True, ge=0, le=100)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
#: RFC 1123 label: namespaces, ports' and sections' names.
Label = Annotated[
    str,
    *_matching(
        _LABEL, "not a DNS label", "use up to 63 lower-case letters, digits and hyphens, not at the ends (RFC 1123)"
    ),
]
#: RFC 1123 subdomain: objects' names.
Subdomain = Annotated[
    str,
    *_matching(
        SUBDOMAIN,
        "not a DNS subdomain name",
        "use up to 253 lower-case letters, digits, hyphens and dots, not at the ends (RFC 1123)",
    ),
]
#: A name in a reference or of a section: the API admits more here than it does in metadata.
Name = Annotated[str, Field(min_length=1, max_length=253)]
HeaderName = Annotated[str, AfterValidator(_header_name), text_schema(TOKEN.pattern.decode(), 256)]
#: A type of any domain and in any spelling: only the compiler knows the existing types.
ExtensionType = Annotated[
    str,
    *_matching(
        re.compile(r"[!-~]+"),
        "not an extension type",
        "write domain/Kind:version, such as egressproxy.io/CredentialInjector:v1",
    ),
]
_DECLARED_TYPE = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/[A-Za-z][A-Za-z0-9]*:v[0-9][a-z0-9]*"
)
DeclaredType = Annotated[
    str,
    *_matching(
        _DECLARED_TYPE,
        "not a filter type",
        "write domain/Kind:version under a domain of your own, such as acme.example.com/PIIDetector:v1",
    ),
]
TrustDomain = Annotated[
    str,
    *_matching(
        TRUST_DOMAIN,
        "not a SPIFFE trust domain",
        "write its name alone, in lower case, such as cluster.local (without spiffe://)",
    ),
]
Pin = Annotated[
    str,
    *_matching(
        re.compile(r"sha256/[A-Za-z0-9+/]{43}="),
        "not a pin",
        "write sha256/ and the base64 of the SHA-256 of the public key (SPKI)",
    ),
]
ServerAddress = Annotated[str, AfterValidator(_server_address)]
Timestamp = Annotated[str, AfterValidator(_timestamp)]
Cidr = Annotated[
    IPv4Network | IPv6Network,
    PlainValidator(_cidr),
    PlainSerializer(str),
    text_schema(r"[0-9A-Fa-f:.]+(/[0-9]{1,3})?", 64, "10.0.0.0/8", "2001:db8::/32"),
]
Address = Annotated[
    IPAddress,
    PlainValidator(_address),
    PlainSerializer(str),
    text_schema(r"\[?[0-9A-Fa-f:.]+(%[^\s/]+)?\]?", 128, "192.0.2.1"),
]
#: What an operator tells clients: up to 256 characters on one line.
ClientText = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_client_text)]
SecretValue = Annotated[
    SecretBytes,
    PlainValidator(_secret),
    PlainSerializer(_redacted),
    JsonSchema({"type": "string", "contentEncoding": "base64"}),
]
SecretText = Annotated[
    SecretBytes, PlainValidator(_secret_text), PlainSerializer(_redacted), JsonSchema({"type": "string"})
]
