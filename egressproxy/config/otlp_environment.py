"""Collectors and the sampling of a process, by the variables that OpenTelemetry's SDKs read.

The options `--otlp-…` of `run` become variables, too. As the specification has it, an empty variable counts as unset,
and a value that is none of those allowed is ignored with a warning. Source: OpenTelemetry specification, "OTLP Exporter
Configuration", "SDK Environment Variables" and "Common Configuration".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination, EndpointAddress, Protocol
from egressproxy.ir.policy import AddressAllowance, AddressesIR, PolicyIR
from egressproxy.ir.route import WeightedBackend
from egressproxy.ir.telemetry import SERVICE_NAME, CollectorIR, OtlpProtocol, Signal, TracingIR
from egressproxy.model.fields import TOKEN, VALUE
from egressproxy.model.secret import SecretBytes

#: How `run` hands its options to the processes that it starts.
OPTION: Final = "EGRESSPROXY_OTLP_ENDPOINT"
SIGNALS_OPTION: Final = "EGRESSPROXY_OTLP_SIGNALS"

_CALLED: Final = {OPTION: "--otlp-endpoint", SIGNALS_OPTION: "--otlp-signals"}
_GRPC_PORT, _HTTP_PORT = 4317, 4318
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
_PATH: Final = re.compile(r"[\x21-\x7e]*")
#: The longest time, in milliseconds: a timeout of 0 means no limit, which a queue cannot have.
_LONGEST_MS: Final = 2**31 - 1
_LONGEST_TIMEOUT_S: Final = 300.0
DEFAULT_INTERVAL_S: Final = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """What is exported without a policy, or with one that does not say this: `traces`, and the `collectors` of the
    access log and of metrics.

    `service_name` and `resource` are for collectors of policies, too. `interval_s` is the time from one export of
    metrics to the next. `warnings` are sentences about ignored values.
    """

    traces: TracingIR | None = None
    collectors: tuple[CollectorIR, ...] = ()
    service_name: str = SERVICE_NAME
    resource: tuple[tuple[str, str], ...] = ()
    interval_s: float = DEFAULT_INTERVAL_S
    warnings: tuple[str, ...] = ()


NO_TELEMETRY: Final = OtlpSettings()


def otlp_settings(environment: Mapping[str, str]) -> OtlpSettings:
    """What these variables ask for. Raises ValueError for an endpoint, headers or a certificate that cannot be used; it
    names the variable, and what to write.
    """
    return _Reader(environment).settings()


def signals_of(written: str) -> frozenset[Signal]:
    """The signals in this list of the option. Raises ValueError."""
    names = [each.strip().lower() for each in written.split(",")]
    known = [each.value for each in Signal]
    for name in names:
        if name not in known:
            raise ValueError(f"{_CALLED[SIGNALS_OPTION]} has {name!r}: write a list of {', '.join(known)}")
    return frozenset(map(Signal, names))


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._warnings: list[str] = []

    def settings(self) -> OtlpSettings:
        resource = self._resource()
        service_name = self._text("OTEL_SERVICE_NAME") or resource.pop("service.name", "") or SERVICE_NAME
        if self._choice("OTEL_SDK_DISABLED", {"true": True, "false": False}, False):
            return OtlpSettings(service_name=service_name, resource=tuple(resource.items()))
        found = {
            signal: self._collector(signal, service_name, tuple(resource.items()))
            for signal in Signal
            if self._is_asked_for(signal)
        }
        traces = found.pop(Signal.TRACES, None)
        share, parent_share = self._sampling()  # its variables are checked, whether there is a collector or not
        interval_s = DEFAULT_INTERVAL_S
        if Signal.METRICS in found:
            interval_s = self._milliseconds("OTEL_METRIC_EXPORT_INTERVAL", interval_s) or DEFAULT_INTERVAL_S
        return OtlpSettings(
            TracingIR(traces, share, parent_share) if traces is not None else None,
            tuple(found.values()), service_name, tuple(resource.items()), interval_s, tuple(self._warnings),
        )  # fmt: skip

    def _is_asked_for(self, signal: Signal) -> bool:
        """Traces are where there is an endpoint for them; the others by their variable or the option alone."""
        option = self._text(SIGNALS_OPTION)
        if option:
            return signal in signals_of(option)
        variable = f"OTEL_{signal.name}_EXPORTER"
        names = {each.strip().lower() for each in self._text(variable).split(",")} - {""}
        unknown = sorted(names - {"otlp", "none"})
        if unknown:
            self._warn(variable, ", ".join(unknown), "otlp or none")
            names -= {*unknown}
        if names:
            return "otlp" in names
        return signal is Signal.TRACES and bool(self._endpoint(signal))

    def _endpoint(self, signal: Signal) -> str:
        """The first of the variables that name an endpoint; "": none does."""
        variables = (OPTION, f"OTEL_EXPORTER_OTLP_{signal.name}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        return next((each for each in variables if self._text(each)), "")

    def _collector(self, signal: Signal, service_name: str, resource: tuple[tuple[str, str], ...]) -> CollectorIR:
        """Without an endpoint: the default of the SDKs, on this machine."""
        variable = self._endpoint(signal)
        written = self._text(variable) if variable else "http://localhost"
        shown = "a URL that may hold a secret" if "@" in written or "?" in written else repr(written)
        wrong = f"{_CALLED.get(variable, variable)} is {shown}: write a URL such as http://otel-collector:4318"
        try:
            url = urlsplit(written)
            host, port = url.hostname or "", url.port
        except ValueError:
            raise ValueError(wrong) from None
        if url.scheme not in ("http", "https") or not host or url.username is not None or url.query or url.fragment:
            raise ValueError(wrong)
        if not _PATH.fullmatch(url.path):
            raise ValueError(wrong)
        by_port = OtlpProtocol.GRPC if port == _GRPC_PORT else OtlpProtocol.HTTP
        protocol = self._of_signal(
            signal, "PROTOCOL", lambda name: self._choice(name, {each.value: each for each in OtlpProtocol}, by_port)
        )
        port = port or (_GRPC_PORT if protocol is OtlpProtocol.GRPC else _HTTP_PORT)
        is_own = variable == f"OTEL_EXPORTER_OTLP_{signal.name}_ENDPOINT"
        path = url.path or "/" if is_own else f"{url.path.rstrip('/')}/v1/{signal.value}"
        ca_pem = self._of_signal(signal, "CERTIFICATE", self._certificate)
        self._of_signal(signal, "CLIENT_CERTIFICATE", self._client_certificate)
        tls = BackendTlsIR(sni=host, ca_pem=ca_pem) if url.scheme == "https" else None
        return CollectorIR(
            WeightedBackend(_backend(host, port, protocol, tls), policy=_POLICY),
            protocol,
            path,
            self._of_signal(signal, "HEADERS", self._headers),
            service_name,
            signal,
            self._of_signal(
                signal, "TIMEOUT", lambda name: min(self._milliseconds(name, 10.0) or 1e9, _LONGEST_TIMEOUT_S)
            ),
            self._of_signal(
                signal, "COMPRESSION", lambda name: self._choice(name, {"gzip": True, "none": False}, False)
            ),
            resource,
        )

    def _of_signal(self, signal: Signal, what: str, read: Callable[[str], T]) -> T:
        """The value of the variable of this signal if it is set, else of the general one."""
        own, general = f"OTEL_EXPORTER_OTLP_{signal.name}_{what}", f"OTEL_EXPORTER_OTLP_{what}"
        return read(own if self._text(own) else general)

    def _text(self, variable: str) -> str:
        """Without what is no UTF-8, which no collector would read."""
        return self._environment.get(variable, "").encode("utf-8", "replace").decode().strip()

    def _warn(self, variable: str, written: str, remedy: str) -> None:
        warning = f"{variable} is {written!r}, which is ignored: write {remedy}"
        if warning not in self._warnings:
            self._warnings.append(warning)

    def _client_certificate(self, variable: str) -> None:
        """Collectors of variables are shown none."""
        if written := self._text(variable):
            self._warn(variable, written, "an XTelemetryPolicy whose Backend has tls.clientCertificateRef, for traces")

    def _choice(self, variable: str, known: Mapping[str, T], default: T) -> T:
        written = self._text(variable)
        if written and written.lower() not in known:
            self._warn(variable, written, " or ".join(known))
        return known.get(written.lower(), default)

    def _milliseconds(self, variable: str, default_s: float) -> float:
        """In seconds."""
        written = self._text(variable)
        if not written:
            return default_s
        if not (written.isascii() and written.isdigit()) or int(written[:11]) > _LONGEST_MS:
            self._warn(variable, written, "a number of milliseconds")
            return default_s
        return int(written) / 1000

    def _certificate(self, variable: str) -> str:
        path = self._text(variable)
        if not path:
            return ""
        remedy = "name a file with certificates in PEM"
        try:
            pem = Path(path).read_text("ascii")
        except OSError as error:
            raise ValueError(f"{variable} is {path!r}: {error.strerror}; {remedy}") from None
        except UnicodeDecodeError:
            pem = ""
        from cryptography import x509  # few processes have one

        try:
            x509.load_pem_x509_certificates(pem.encode())
        except ValueError:
            raise ValueError(f"{variable} is {path!r}, which has no certificate: {remedy}") from None
        return pem

    def _headers(self, variable: str) -> tuple[tuple[str, SecretBytes], ...]:
        """Raises ValueError without the value, which may be a secret."""
        found = []
        for each in self._text(variable).split(","):
            if not each.strip():
                continue
            name, separator, value = each.strip().partition("=")
            sent = unquote(value.strip()).encode()
            if not separator or not TOKEN.fullmatch(name.strip().encode()) or not VALUE.fullmatch(sent):
                raise ValueError(
                    f"{variable} is no list of fields: write name=value,name=value with values URL-encoded"
                )
            found.append((name.strip().lower(), SecretBytes(sent)))
        return tuple(found)

    def _resource(self) -> dict[str, str]:
        """Of a list with a fault, nothing, as the specification has it."""
        variable, found = "OTEL_RESOURCE_ATTRIBUTES", {}
        for each in self._text(variable).split(","):
            name, separator, value = each.partition("=")
            if separator and name.strip():
                found[unquote(name.strip())] = unquote(value.strip())
            elif each.strip():
                self._warn(variable, self._text(variable), "name=value,name=value with values URL-encoded")
                return {}
        return found

    def _sampling(self) -> tuple[float, float | None]:
        default = _SAMPLERS["parentbased_always_on"]
        share, clients_decide = self._choice("OTEL_TRACES_SAMPLER", _SAMPLERS, default)
        if share is None:
            share = self._share("OTEL_TRACES_SAMPLER_ARG")
        return share, 1.0 if clients_decide else None

    def _share(self, variable: str) -> float:
        written = self._text(variable)
        try:
            share = float(written or 1.0)
        except ValueError:
            share = -1.0
        if not 0.0 <= share <= 1.0:
            self._warn(variable, written, "a number from 0 to 1")
            return 1.0
        return share


def _backend(host: str, port: int, protocol: OtlpProtocol, tls: BackendTlsIR | None) -> BackendIR:
    spoken = Protocol.GRPC if protocol is OtlpProtocol.GRPC else Protocol.HTTP
    name = f"otlp/{host}"
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return BackendIR(name, Destination.FQDN, host, port, protocol=spoken, tls=tls)
    endpoints = (EndpointAddress(address, port),)
    return BackendIR(name, Destination.IP, port=port, endpoints=endpoints, protocol=spoken, tls=tls)
