"""The collector and the sampling of a process, by the variables that OpenTelemetry's SDKs read.

The option `--otlp-endpoint` of `run` becomes a variable, too. Source: OpenTelemetry specification, "OTLP Exporter
Configuration" and "SDK Environment Variables".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import unquote, urlsplit

from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination, EndpointAddress, Protocol
from egressproxy.ir.policy import AddressAllowance, AddressesIR, PolicyIR
from egressproxy.ir.route import WeightedBackend
from egressproxy.ir.telemetry import SERVICE_NAME, CollectorIR, OtlpProtocol, TracingIR
from egressproxy.model.fields import TOKEN, VALUE
from egressproxy.model.secret import SecretBytes

#: How `run` hands its option to the processes that it starts.
OPTION: Final = "EGRESSPROXY_OTLP_ENDPOINT"

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_GRPC_PORT, _HTTP_PORT = 4317, 4318
_PATH: Final = "/v1/traces"
#: By OTEL_TRACES_SAMPLER: the share of new traces (None: of OTEL_TRACES_SAMPLER_ARG), and whether clients decide.
_SAMPLERS: Final[dict[str, tuple[float | None, bool]]] = {
    "always_on": (1.0, False),
    "always_off": (0.0, False),
    "traceidratio": (None, False),
    "parentbased_always_on": (1.0, True),
    "parentbased_always_off": (0.0, True),
    "parentbased_traceidratio": (None, True),
}
#: An operator's own collector may be anywhere.
_ANYWHERE: Final = AddressAllowance(cidrs=(ip_network("0.0.0.0/0"), ip_network("::/0")))
_POLICY: Final = PolicyIR(addresses=AddressesIR(allow=((_ANYWHERE,),)))


@dataclass(frozen=True, slots=True)
class TracingDefaults:
    """For Gateways without a policy, or with one that does not say this. `share`, `parent_share`: as of TracingIR."""

    backend: WeightedBackend
    protocol: OtlpProtocol = OtlpProtocol.HTTP
    path: str = _PATH
    headers: tuple[tuple[str, SecretBytes], ...] = ()
    service_name: str = SERVICE_NAME
    share: float = 1.0
    parent_share: float | None = 1.0

    def collector(self, service_name: str = "") -> CollectorIR:
        """The collector of spans of this service; "": of the process."""
        return CollectorIR(self.backend, self.protocol, self.path, self.headers, service_name or self.service_name)

    @property
    def tracing(self) -> TracingIR:
        """How a Gateway without any policy traces."""
        return TracingIR(self.collector(), self.share, self.parent_share)


def tracing_defaults(environment: Mapping[str, str]) -> TracingDefaults | None:
    """What these variables ask for; None without an endpoint. Raises ValueError, which names the variable and what to
    write.
    """
    variable = next((each for each in (OPTION, _TRACES_ENDPOINT, _ENDPOINT) if environment.get(each)), "")
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not variable or is_off or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    written = environment[variable]
    called = "--otlp-endpoint" if variable == OPTION else variable
    shown = "a URL with a password" if "@" in written else repr(written)
    wrong = f"{called} is {shown}: write a URL such as http://otel-collector:4318"
    try:
        url = urlsplit(written)
        host, port = url.hostname or "", url.port
    except ValueError:
        raise ValueError(wrong) from None
    if url.scheme not in ("http", "https") or not host or url.username is not None or url.query or url.fragment:
        raise ValueError(wrong)
    protocol = _protocol(environment, port)
    port = port or (_GRPC_PORT if protocol is OtlpProtocol.GRPC else _HTTP_PORT)
    path = url.path or "/" if variable == _TRACES_ENDPOINT else url.path.rstrip("/") + _PATH
    share, parent_share = _sampling(environment)
    backend = _backend(host, port, protocol, is_secure=url.scheme == "https")
    return TracingDefaults(
        WeightedBackend(backend, policy=_POLICY), protocol, path, _headers(environment),
        environment.get("OTEL_SERVICE_NAME") or SERVICE_NAME, share, parent_share,
    )  # fmt: skip


def _backend(host: str, port: int, protocol: OtlpProtocol, *, is_secure: bool) -> BackendIR:
    spoken = Protocol.GRPC if protocol is OtlpProtocol.GRPC else Protocol.HTTP
    tls = BackendTlsIR(sni=host) if is_secure else None
    name = f"otlp/{host}"
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return BackendIR(name, Destination.FQDN, host, port, protocol=spoken, tls=tls)
    endpoints = (EndpointAddress(address, port),)
    return BackendIR(name, Destination.IP, port=port, endpoints=endpoints, protocol=spoken, tls=tls)


def _protocol(environment: Mapping[str, str], port: int | None) -> OtlpProtocol:
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        written = environment.get(variable)
        if written:
            known = [each.value for each in OtlpProtocol]
            if written not in known:
                raise ValueError(f"{variable} is {written!r}: write {' or '.join(known)}")
            return OtlpProtocol(written)
    return OtlpProtocol.GRPC if port == _GRPC_PORT else OtlpProtocol.HTTP


def _headers(environment: Mapping[str, str]) -> tuple[tuple[str, SecretBytes], ...]:
    """Raises ValueError without the value, which may be a secret."""
    found = []
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"):
        written = environment.get(variable)
        if not written:
            continue
        for each in written.split(","):
            name, separator, value = each.strip().partition("=")
            sent = unquote(value.strip()).encode()
            if not separator or not TOKEN.fullmatch(name.strip().encode()) or not VALUE.fullmatch(sent):
                raise ValueError(
                    f"{variable} is no list of fields: write name=value,name=value with values URL-encoded"
                )
            found.append((name.strip().lower(), SecretBytes(sent)))
        break
    return tuple(found)


def _sampling(environment: Mapping[str, str]) -> tuple[float, float | None]:
    variable, argument = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
    written = environment.get(variable) or "parentbased_always_on"
    if written not in _SAMPLERS:
        raise ValueError(f"{variable} is {written!r}: write one of {', '.join(_SAMPLERS)}")
    share, clients_decide = _SAMPLERS[written]
    if share is None:
        given = environment.get(argument) or "1.0"
        try:
            share = float(given)
        except ValueError:
            share = -1.0
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"{argument} is {given!r}: write a number from 0 to 1")
    return share, 1.0 if clients_decide else None
