"""The options of `egressproxy run`."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from egressproxy.model.authority import Authority
from egressproxy.model.secret import ConfigSource, SecretBytes, SecretSource

_NO_KEY = SecretBytes(b"")
#: Every cluster has this namespace, so installations that watch all namespaces share it.
LEASE_NAMESPACE = "default"
#: The port of the open proxy: the default of Squid, which most clients' documentation names.
OPEN_PORT = 3128
#: A warning for options with `lacks_token`.
ADMIN_IS_CLOSED = "--admin is not on loopback, so that without --api-token-file it only answers health and /metrics"


@dataclass(frozen=True, slots=True)
class FilterListener:
    """The listener of `egressproxy serve-filters`: an IP address and port, or the `path` of a Unix socket with its
    permissions `mode`. `tls_certificate`, `tls_key` and `tls_client_ca` are PEM files, None without TLS.
    `trust_domains` are the SPIFFE trust domains from which client ids that Envoy reports are accepted.
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
    """The API server to read objects from, and the objects to read.

    Without `kubeconfig` and `context` the API server is the Pod's own, or that of the kubeconfig's current context.
    `namespaces` limits the namespaces that are read; empty: all. Secrets and ConfigMaps are read by reference or, with
    `secret_selector`, by labels. `publish_service` ("namespace/name") has the addresses of our Gateways. `state_key` is
    a file with the key for Secrets in the state folder; None: the folder stores no Secrets. `gateway_namespaces` limits
    the namespaces whose Gateways and ListenerSets are served; empty: all. `lease_namespace` holds the Lease for writing
    status in all namespaces and to cluster-scoped objects.
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
    access_log_format: str = "auto"  # text, json, or text on a terminal and JSON elsewhere
    log_level: str = "info"
    log_format: str = "text"  # of the diagnostics: text or json
    drain_timeout_s: float = 10.0
    drain_delay_s: float = 0.0  # before the drain: connections are accepted, and /readyz returns 503
    takeover: Path | None = None  # a Unix socket: its server hands its listening sockets to this process
    workers: int = 1
    state_dir: Path | None = None  # files written through the API
    api_writes: bool = False
    socket_dirs: tuple[Path, ...] = ()  # where Gateways may have Unix sockets; none and no api_writes: anywhere
    api_token_file: Path | None = None
    ui_oidc_issuer: str = ""  # "": no login by OpenID Connect
    ui_oidc_client_id: str = ""
    ui_oidc_allow: tuple[str, ...] = ()  # email addresses, and "group:NAME"
    experimental: bool = False  # what provisional GEPs of Gateway API define is served
    guarded: bool = False  # a reload that allows recently denied requests needs an acknowledgement
    zone: str = ""  # the zone of this gateway, as in EndpointSlices; "": not known
    session_key: SecretBytes = _NO_KEY  # empty: a random key is generated
    max_connections: int | None = None  # per worker, like the next two; see ProcessLimits
    max_requests: int = 0
    max_memory: int | None = None  # bytes; None: by the cgroup
    debug_filters: bool = False  # failures of filters are logged with the text of their exceptions
    tls_key_log: Path | None = None  # the file to which TLS secrets are logged
    open_port: int = OPEN_PORT  # the port of the open proxy
    filters: FilterListener | None = None  # set: filters are served to Envoy, and no listener is bound
    cluster: ClusterOptions | None = None  # set: objects are read from an API server, too

    @property
    def sources(self) -> tuple[ConfigSource, ...]:
        """The files, folders and Secrets of the configuration."""
        return (*self.config, *self.secrets)

    @property
    def is_configured(self) -> bool:
        """Whether there is a configuration; otherwise the open proxy is served."""
        return bool(self.config) or self.state_dir is not None or self.cluster is not None

    @property
    def lacks_token(self) -> bool:
        """Whether the admin address is on a network and nobody can show a token there."""
        is_open = self.admin is not None and not ip_address(self.admin[0]).is_loopback
        return is_open and self.api_token_file is None and not self.ui_oidc_issuer
