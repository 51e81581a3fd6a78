"""Binding: which backends may be sent a credential, by scheme, verified name, port and path."""

from __future__ import annotations

from egressproxy.errors import Denied, Reason
from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.model.exchange import Exchange
from egressproxy.model.path import has_dot_segment


class BackendBinding:
    """`looks_at_heads`: path or Host of each request have to be looked at, too. `name` and `source` are those of the
    filter.
    """

    __slots__ = ("_allow_plaintext", "_hosts", "_ports", "_prefix", "looks_at_heads", "name", "source")

    def __init__(self, config: CredentialInjectorConfig, name: str, source: str) -> None:
        bind = config.bind
        self._allow_plaintext = config.allow_plaintext
        self._hosts = frozenset(bind.hosts)
        self._ports = frozenset(bind.ports)
        self._prefix = bind.path_prefix.rstrip("/").encode()
        self.looks_at_heads = bool(self._prefix or self._hosts)
        self.name = name
        self.source = source

    def check(self, x: Exchange) -> None:
        """Raises Denied (403): PLAINTEXT_CREDENTIAL without TLS, CREDENTIAL_NOT_BOUND for what it is not bound to."""
        origin = x.backend_origin
        if not (self._allow_plaintext or (origin.is_secure if origin is not None else x.backend_is_secure)):
            raise Denied(
                Reason.PLAINTEXT_CREDENTIAL,
                f"backend {x.backend} is not reached over TLS, and filter {self.name} sends its credential over TLS"
                " only",
                rule=self.source,
                remedy="add `tls` to the Backend, or `allowPlaintext: true` to the filter's config",
            )
        if self._hosts and (origin is None or not origin.names or not self._hosts.issuperset(origin.names)):
            raise self._not_bound(x, "hosts", "is not verified as a host")
        if self._hosts and x.upstream_host and host_name(x.upstream_host) not in self._hosts:
            # Who serves many names under one certificate goes by Host (RFC 9110 section 7.4).
            raise self._not_bound(x, "hosts", "is asked, in Host, for another name than those")
        if self._ports and (origin is None or origin.port not in self._ports):
            raise self._not_bound(x, "ports", "is not on a port")
        if self._prefix:
            path = x.request.path.partition(b"?")[0]
            if not (path == self._prefix or path.startswith(self._prefix + b"/")) or has_dot_segment(path):
                raise self._not_bound(x, "pathPrefix", "is asked for a path that is not below the one")

    def _not_bound(self, x: Exchange, field: str, what: str) -> Denied:
        return Denied(
            Reason.CREDENTIAL_NOT_BOUND,
            f"backend {x.backend} {what} that filter {self.name} is bound to, and gets no credential",
            rule=self.source,
            remedy=f"correct bind.{field} in the filter's config, or place the filter on the Backend that it is for",
        )


def host_name(field: bytes) -> str:
    """The name in the value of Host, in lower case, without its port and the dot of its root."""
    name, colon, port = field.rpartition(b":")
    return (name if colon and port.isdigit() else field).decode("latin-1").lower().removesuffix(".")
