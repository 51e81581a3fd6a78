"""What `egressproxy run` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egressproxy.model.authority import Authority
from egressproxy.model.secret import ConfigSource, SecretBytes, SecretSource

_NO_KEY = SecretBytes(b"")
#: It is in every cluster, and installations of all namespaces meet there.
LEASE_NAMESPACE = "default"
#: Of the open proxy: that of Squid, which most clients' documentation names.
OPEN_PORT = 3128


@dataclass(frozen=True, slots=True)
class FilterListener:
    """Where `egressproxy serve-filters` listens: an IP address and port, or the `path` of a Unix socket with its
    permissions `mode`. `tls_certificate`, `tls_key` and `tls_client_ca` are files of PEM, None without TLS.
    `trust_domains`: the SPIFFE ids of clients that Envoy tells are believed if they are of one of these.
    """

    host: str = ""
    port: int = 0
    path: str = ""
    mode: int = 0o600
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    trust_domains: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else str(Authority(self.host, self.port))


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Which API server objects are read from, and which of them.

    Without `kubeconfig` and `context` it is that of the Pod, or the current context of the usual kubeconfig.
    `namespaces` are those that are read; none: all. Secrets and ConfigMaps are read by reference or, with
    `secret_selector`, by labels. `publish_service` ("namespace/name") has the addresses of our Gateways. `state_key` is
    a file with the key for the Secrets in the state folder; None: they are not kept there. `gateway_namespaces` are
    those whose Gateways and ListenerSets are taken; none: all. `lease_namespace` has the Lease of those who write the
    status of all namespaces, and of objects without one.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespaces: tuple[str, ...] = ()
    secret_selector: str = ""
    publish_service: str = ""
    state_key: Path | None = None
    gateway_namespaces: tuple[str, ...] = ()
    lease_namespace: str = LEASE_NAMESPACE


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`bind` are IP literals and networks; `admin` and `metrics` are (address, port), None for none."""

    config: tuple[Path, ...] = ()
    secrets: tuple[SecretSource, ...] = ()
    bind: tuple[str, ...] = ("127.0.0.1",)
    admin: tuple[str, int] | None = ("127.0.0.1", 15900)
    metrics: tuple[str, int] | None = None
    access_log: str | None = None  # None: stdout; "off": none; else a path
    log_level: str = "info"
    log_format: str = "text"  # of the diagnostics: text or json
    drain_timeout_s: float = 10.0
    drain_delay_s: float = 0.0  # for so long connections are accepted before the drain, while /readyz says 503
    takeover: Path | None = None  # a Unix socket: who serves it gives its sockets to this process, which serves it then
    workers: int = 1
    state_dir: Path | None = None  # what was written through the API
    api_writes: bool = False
    socket_dirs: tuple[Path, ...] = ()  # where Gateways may have Unix sockets; none and no api_writes: anywhere
    api_token_file: Path | None = None
    guarded: bool = False  # a reload that would allow what was recently denied has to be acknowledged
    zone: str = ""  # where this gateway runs, as in EndpointSlices; "": not known
    session_key: SecretBytes = _NO_KEY  # empty: one is made up
    max_connections: int | None = None  # of each worker, as the next two; see ProcessLimits
    max_requests: int = 0
    max_memory: int | None = None  # bytes; None: by the cgroup
    tls_key_log: Path | None = None  # a file for the secrets of TLS connections
    open_port: int = OPEN_PORT  # where the open proxy is served
    filters: FilterListener | None = None  # set: filters are served to Envoy, and no listener is bound
    cluster: ClusterOptions | None = None  # set: objects are read from an API server, too

    @property
    def sources(self) -> tuple[ConfigSource, ...]:
        """What the configuration is read from."""
        return (*self.config, *self.secrets)

    @property
    def is_configured(self) -> bool:
        """Whether there is a configuration; otherwise the open proxy is served."""
        return bool(self.config) or self.state_dir is not None or self.cluster is not None
