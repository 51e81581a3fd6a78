"""Hostnames in manifests. Sources: Gateway API v1 (PreciseHostname), GEP-4488 (ExternalHostname), RFC 1123."""

import re
from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator

from egressproxy.config.resources.values import MAX_HOSTNAME, SUBDOMAIN, RefusedValue, text_schema
from egressproxy.model.authority import AuthorityError, parse_host

_MORE_THAN_A_HOST = re.compile(r"([a-z][a-z0-9+.-]*://)?((?:\*\.)?[\w-]+(?:\.[\w-]+)*\.?)(:[0-9]+)?(/.*)?", re.ASCII)
_LIKE_AN_ADDRESS = re.compile(r"[0-9a-fA-F:.%\[\]]+")


def _precise_hostname(value: str) -> str:
    if value.startswith("*"):
        raise RefusedValue("a wildcard is not possible here", "name one host")
    return _hostname(value)


def _hostname(value: str) -> str:
    bare = value.removeprefix("*.")
    if "*" in bare:
        raise RefusedValue("a wildcard has to be the whole first label", _wildcard_remedy(value))
    _refuse_more_than_a_host(value, "name the port in its own field")
    if value != value.lower():
        raise RefusedValue("a hostname is written in lower case", f"write {value.lower()}")
    if ":" in value:
        raise RefusedValue("a hostname has no port", "name the port in its own field")
    if len(value) > MAX_HOSTNAME or not SUBDOMAIN.fullmatch(bare):
        raise RefusedValue("not a hostname", "write a DNS name such as api.example.com or *.example.com")
    return value


def _destination_hostname(value: str) -> str:
    """A hostname pattern of an egress policy, normalised to lower case without the trailing dot."""
    bare = value.removeprefix("*.")
    if "*" in bare:
        raise RefusedValue("a wildcard has to be the whole first label of a name", _wildcard_remedy(value))
    _refuse_more_than_a_host(value, "ports stand under ports")
    try:
        name, address = parse_host(bare.encode("ascii"))
    except UnicodeEncodeError:
        raise RefusedValue("a hostname is ASCII", "write an international name in its xn-- form") from None
    except AuthorityError as error:
        remedy = (
            "write the address under cidrs"
            if ":" in bare and _LIKE_AN_ADDRESS.fullmatch(bare)
            else "write a DNS name such as api.example.com or *.example.com"
        )
        raise RefusedValue(f"not a hostname: {error}", remedy) from None
    if address is not None:
        raise RefusedValue("an address is not a hostname", "write the address under cidrs")
    return "*." + name if bare != value else name


def _intercepted_hostname(value: str) -> str:
    return value if value == "*" else _destination_hostname(value)


def _refuse_more_than_a_host(value: str, port_remedy: str) -> None:
    """Refuse what was copied from a browser or a client: a URL, a name with its port or path."""
    match = _MORE_THAN_A_HOST.fullmatch(value)
    if match is None or _LIKE_AN_ADDRESS.fullmatch(value):
        return
    scheme, host, port, path = match.groups()
    parts = [name for name, is_there in (("scheme", scheme), ("port", port), ("path", path)) if is_there]
    if parts:
        listed = " or ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
        remedy = f"write {host.lower()} alone" + (f"; {port_remedy}" if port else "")
        raise RefusedValue(f"a hostname has no {listed}", remedy)


def _wildcard_remedy(value: str) -> str:
    if value in ("*", "*."):
        return "name the hosts or suffixes, such as *.example.com; mode: Open allows everything, and allow: [] nothing"
    suffix = value.rpartition("*")[2].strip(".") or "example.com"
    return f"write *.{suffix} for every name below that suffix, or the names in full"


def _external_hostname(value: str) -> str:
    """A name outside the cluster: IP literals and `.cluster.local` are refused (GEP-4488, ExternalHostname)."""
    lowered = value.lower().removesuffix(".")
    try:
        ip_address(lowered.strip("[]"))
    except ValueError:
        pass
    else:
        raise RefusedValue("an address is not a hostname", "use a destination of type Ip")
    if lowered == "cluster.local" or lowered.endswith(".cluster.local"):
        raise RefusedValue("a name of the cluster is not external", "use a destination of type Service")
    if "*" in lowered:
        raise RefusedValue("a wildcard is not possible here", "name one host, or use a destination of type Dynamic")
    return _destination_hostname(value)


def _single_hostname(value: str) -> str:
    name = _destination_hostname(value)
    if name.startswith("*."):
        raise RefusedValue("a wildcard is not possible here", "write each name in full")
    return name


Hostname = Annotated[str, AfterValidator(_hostname)]
PreciseHostname = Annotated[str, AfterValidator(_precise_hostname)]
#: A name in any case; one dot at its end is taken off.
_NAME = r"[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?\.?"
_ONE_NAME = text_schema(_NAME, MAX_HOSTNAME + 1)
DestinationHostname = Annotated[
    str, AfterValidator(_destination_hostname), text_schema(rf"(\*\.)?{_NAME}", MAX_HOSTNAME + 3)
]
InterceptedHostname = Annotated[
    str, AfterValidator(_intercepted_hostname), text_schema(rf"\*|(\*\.)?{_NAME}", MAX_HOSTNAME + 3)
]
SingleHostname = Annotated[str, AfterValidator(_single_hostname), _ONE_NAME]
ExternalHostname = Annotated[str, AfterValidator(_external_hostname), _ONE_NAME]
