"""HypotheticalRequest: the URL, the listener and the head of a request that is not sent.

For explanations and replays. The head goes through the codec as bytes, so that what the codec refuses is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from egressproxy.gateway.snapshot import ActiveListener, Port, Snapshot
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.model.authority import AuthorityError, parse_authority
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity, service_account_name
from egressproxy.model.fields import TOKEN, VALUE
from egressproxy.model.message import RequestHead
from egressproxy.protocols.http1.codec import RequestReader

_URL = re.compile(r"(https?)://([^/?#]+)(/?[^#]*)", re.IGNORECASE)
_KNOWN = ("method", "url", "as", "group", "claim", "key", "gateway", "listener", "header", "dns")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class HypotheticalRequestError(ValueError):
    """The question cannot be asked like this; the message says why, and what to write."""


@dataclass(frozen=True, slots=True)
class HypotheticalRequest:
    """`url` is an `http://` or `https://` URL, a path (for a reverse proxy, with a Host field), or `host:port` for
    CONNECT and for listeners of protocol TLS, which take `https://` where they open the host. `gateway`
    (namespace/name) and `listener` (name) choose among several. `key` is the entry of an API key, as ENTRY or
    NAMESPACE/SECRET#ENTRY, whose client asks; "": none is shown.
    """

    method: str
    url: str
    fields: tuple[tuple[str, str], ...] = ()
    namespace: str = "-"
    service_account: str = "-"
    gateway: str = ""
    listener: str = ""
    asks_dns: bool = True
    groups: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()
    key: str = ""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> HypotheticalRequest:
        """By parameters of /explain; `header`, `group`, `claim` may be repeated. Raises HypotheticalRequestError."""
        values: dict[str, str] = {}
        fields, groups, claims = [], [], []
        for key, value in pairs:
            if key == "header":
                name, colon, text = value.partition(":")
                if not colon:
                    raise HypotheticalRequestError(f"header {name!r} is not NAME: VALUE")
                fields.append((name.strip(), text.strip()))
            elif key == "group":
                groups.append(value)
            elif key == "claim":
                name, equals, text = value.partition("=")
                if not (name and equals and text):
                    raise HypotheticalRequestError(f"claim {value!r} is not NAME=VALUE")
                claims.append((name, text))
            elif key not in _KNOWN:
                raise HypotheticalRequestError(f"unknown parameter {key!r}; known are {', '.join(_KNOWN)}")
            elif key in values:
                raise HypotheticalRequestError(f"{key} is given twice")
            else:
                values[key] = value
        if not values.get("url"):
            raise HypotheticalRequestError("url is missing: name what is asked for")
        namespace, slash, account = values.get("as", "-/-").partition("/")
        if not (slash and namespace and account) or "#" in account:
            hint = ": `key` names the client with an API key" if "#" in account else ""
            raise HypotheticalRequestError(f"as {values['as']!r} is not NAMESPACE/SERVICEACCOUNT{hint}")
        if values.get("key") and (namespace != "-" or groups or claims):
            raise HypotheticalRequestError("key names the client: leave out as, group and claim")
        return cls(
            values.get("method", "GET"), values["url"], tuple(fields), namespace, account,
            values.get("gateway", ""), values.get("listener", ""), values.get("dns", "1") not in ("0", "false", "off"),
            tuple(groups), tuple(claims), values.get("key", ""),
        )  # fmt: skip

    @property
    def identity(self) -> CallerIdentity:
        """The client; ANONYMOUS if the request names none."""
        if self.namespace == self.service_account == "-" and not self.groups and not self.claims:
            return ANONYMOUS
        name = service_account_name(self.namespace, self.service_account)
        return CallerIdentity(self.namespace, self.service_account, name=name, groups=self.groups, claims=self.claims)

    @property
    def is_connect(self) -> bool:
        return self.method == "CONNECT"

    @property
    def _parts(self) -> tuple[str, str, str]:
        """Scheme, authority (host and maybe port) and the rest, as they are written; "" for what is not there."""
        if self.is_connect:
            return "", self.url, ""
        match = _URL.match(self.url)
        return (match[1], match[2], match[3]) if match is not None else ("", "", self.url)

    @property
    def authority(self) -> str:
        """Host and maybe port, as they are written; "" for a path."""
        return self._parts[1]

    @property
    def scheme(self) -> str:
        """`http` or `https`; "" for a path and for CONNECT."""
        return self._parts[0].lower()

    def check(self) -> None:
        if not TOKEN.fullmatch(self.method.encode("ascii", "replace")):
            raise HypotheticalRequestError(f"{self.method!r} is not a method")
        if not self.url.isascii():
            raise HypotheticalRequestError("the URL has to be ASCII: names in punycode, the rest percent-encoded")
        if self.is_connect:
            try:
                parse_authority(self.url.encode())
            except AuthorityError as error:
                raise HypotheticalRequestError(f"CONNECT asks for HOST:PORT, not for {self.url!r}: {error}") from None
        elif not _URL.match(self.url) and not self.url.startswith("/"):
            message = f"{self.url!r} is neither an http:// or https:// URL nor a path that begins with a slash"
            raise HypotheticalRequestError(message)
        for name, value in self.fields:
            if not TOKEN.fullmatch(name.encode()) or not VALUE.fullmatch(value.encode("utf-8")):
                # Its value may be a credential.
                raise HypotheticalRequestError(f"no header can be sent like this: {name!r}")

    # --- where it would come to ------------------------------------------------------------------------------------
    def port(self, snapshot: Snapshot) -> Port:
        """The port of the listener that is meant. Raises HypotheticalRequestError where none is, or several are."""
        ranked: dict[int, dict[tuple[str, ...], Port]] = {}
        for port in snapshot.ports.values():
            rank = self._rank(port)
            if rank is not None:  # a listener on several addresses is one
                ranked.setdefault(rank, {}).setdefault(_names(port), port)
        if not ranked:
            known = ", ".join(dict.fromkeys(name for port in snapshot.ports.values() for name in _names(port)))
            message = f"no listener takes {self.method} {self.url}; the listeners are {known or 'none'}"
            raise HypotheticalRequestError(message)
        best = ranked[min(ranked)]
        if len(best) > 1:
            names = ", ".join(name for each in best.values() for name in self._takers(each))
            raise HypotheticalRequestError(f"several listeners take this: {names}; choose with --listener or --gateway")
        return next(iter(best.values()))

    def _rank(self, port: Port) -> int | None:
        """How likely this port is meant: less is more; None if it is not."""
        chosen = [each for each in port.listeners if self._is_chosen(each)]
        if not chosen:
            return None
        first = port.first
        if first.is_forward:
            if not (self.is_connect or self.scheme):
                return None
            if port.is_dns:
                return 6
            return 1 if port.circuit_level is None else 5
        if port.is_stream:
            takes = self.is_connect or self._is_inside(port)
            return (2 if self._is_hosted(port) else 3) if takes else None
        if port.is_mixed and self.is_connect and port.leads_to_stream(self.host):
            return 2
        secure = first.spec.protocol is ListenerProtocol.HTTPS
        if self.is_connect:
            return 4 if self.listener or self.gateway else None
        if self.scheme and secure != (self.scheme == "https"):
            return None
        host, number = self._named
        if not self.scheme or (host and number == port.number):
            return -1 if host == port.address else 0
        return 0 if self._is_hosted(port) else 2

    def _is_chosen(self, listener: ActiveListener) -> bool:
        return self.gateway in ("", listener.gateway) and self.listener in (
            "", listener.name, f"{listener.gateway}/{listener.name}",
        )  # fmt: skip

    def _takers(self, port: Port) -> list[str]:
        """The listeners of a port that may be meant: that which has the host, if it is known, or all."""
        found = port.by_host.match(self.host) if self.host else None
        return list(_names(port)) if found is None else [f"{found.gateway}/{found.name}"]

    def _is_inside(self, port: Port) -> bool:
        """Whether this may be a request in a stream of TLS: one that is opened, or was so when the request came."""
        if self.scheme != "https" or port.first.spec.protocol is not ListenerProtocol.TLS:
            return False
        listener = port.by_host.match(self.host)
        return self.listener != "" or (listener is not None and listener.certificates_for(self.host) is not None)

    def _is_hosted(self, port: Port) -> bool:
        listener = port.by_host.match(self.host)
        return listener is not None and bool(listener.spec.hostname)

    @property
    def host(self) -> str:
        """The host in the form that is matched; "" for a path."""
        return self._named[0]

    @property
    def _named(self) -> tuple[str, int]:
        try:
            named = parse_authority(self.authority.encode(), _DEFAULT_PORTS.get(self.scheme, 0))
        except AuthorityError:
            return "", 0
        return named.host, named.port

    # --- what is read there ----------------------------------------------------------------------------------------
    def head(self, port: Port) -> RequestHead:
        """The head as a client would send it to this port, read by the codec. Raises BadRequest, LimitExceeded."""
        reader = RequestReader(port.head_limits)
        reader.forget()  # what an operator asks is not kept beside what clients send
        reader.feed("\r\n".join(self._lines(port)).encode("utf-8") + b"\r\n\r\n")
        event = reader.next()
        assert isinstance(event, RequestHead)
        return event

    def _lines(self, port: Port) -> Iterator[str]:
        target = self.url.partition("#")[0]
        scheme, authority, rest = self._parts
        if scheme:
            rest = rest if rest.startswith("/") else f"/{rest}"
            target = f"{scheme}://{authority}{rest}" if port.first.is_forward else rest
        yield f"{self.method} {target} HTTP/1.1"
        if not any(name.lower() == "host" for name, _ in self.fields) and self.authority:
            yield f"Host: {self.authority}"
        for name, value in self.fields:
            yield f"{name}: {value}"


def _names(port: Port) -> tuple[str, ...]:
    return tuple(f"{each.gateway}/{each.name}" for each in port.listeners)
