"""ClientSettings: the variables of the environment by which client programs find the gateway, and trust its CA."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from egressproxy.model.authority import Authority

#: Hosts that clients reach directly: local programs, which the gateway would not allow.
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
#: Each in capitals and in small letters: for http:// curl and wget read the latter alone, some programs the former.
_PROXY: Final = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
#: Each names a file that replaces the roots which the client has, so that it has to have them, too.
_TRUST: Final = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE",
    "PIP_CERT", "CARGO_HTTP_CAINFO", "DENO_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "npm_config_cafile",  # where an npmrc has a cafile, that goes before NODE_EXTRA_CA_CERTS
)  # fmt: skip
#: The variables by which SDKs are told another base URL.
PROVIDERS: Final = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL", "aws": "AWS_ENDPOINT_URL"}
#: Options of Java that are ours: those that an earlier `env` has set are replaced.
_JAVA: Final = ("-Dhttp.proxy", "-Dhttps.proxy", "-Dhttp.nonProxyHosts=", "-Djavax.net.ssl.trustStore")
#: The password of the trust store for Java, whose content is public.
STORE_PASSWORD: Final = "changeit"  # noqa: S105


class Login(NamedTuple):
    """A client's credentials for the gateway: user and password, or a token with any user."""

    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"Login({self.user})"


NO_LOGIN: Final = Login()


class Proxy(NamedTuple):
    """A forward-proxy listener, as clients name it, with optional credentials."""

    scheme: str
    host: str
    port: int
    login: Login = NO_LOGIN

    @classmethod
    def of(cls, url: str) -> Proxy:
        """Reads `http://HOST:PORT`. Raises ValueError."""
        parts = urlsplit(url)
        with suppress(ValueError):  # of the port
            if parts.scheme in ("http", "https") and parts.hostname and not parts.path.strip("/") and not parts.query:
                port = parts.port or (443 if parts.scheme == "https" else 80)
                return cls(
                    parts.scheme,
                    parts.hostname,
                    port,
                    Login(unquote(parts.username or ""), unquote(parts.password or "")),
                )
        shown = url.rpartition("@")[2]  # the part before it may be a secret
        if parts.scheme.startswith("socks"):
            where = shown.rpartition("//")[2]
            raise ValueError(
                "the variables are for all clients, and many of them speak no SOCKS5: set"
                f" ALL_PROXY=socks5h://{where} by hand for those that do, or give a listener of HTTP"
            )
        raise ValueError(f"{shown!r} is not the URL of a proxy: give one such as http://127.0.0.1:3128")

    def url(self) -> str:
        """With user and password, or with the token as the password: where every client can send it."""
        who = f"{quote(self.login.user, safe='')}:{quote(self.login.password, safe='')}@" if self.login.password else ""
        return f"{self.scheme}://{who}{Authority(self.host, self.port)}"

    def __repr__(self) -> str:
        return f"Proxy({self._replace(login=Login()).url()})"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """`no_proxy`: hosts that bypass the gateway. `bundle`: a PEM file with all trusted roots, `java_store` the same for
    Java. `base_urls`: by provider (PROVIDERS).
    """

    proxy: Proxy | None = None
    no_proxy: tuple[str, ...] = LOCAL
    bundle: Path | None = None
    java_store: Path | None = None
    base_urls: Mapping[str, str] = field(default_factory=dict)

    def variables(self, java_options: str = "") -> dict[str, str]:
        """The variables for all clients, by name. `java_options`: the existing options of Java."""
        found: dict[str, str] = {}
        if self.proxy is not None:
            url = self.proxy.url()
            for name in _PROXY:
                found[name] = found[name.lower()] = url
            found["NODE_USE_ENV_PROXY"] = "1"  # Node.js 22.21 and 24.5 on; older ones have no such thing
        if self.proxy is not None or self.base_urls:
            found["NO_PROXY"] = found["no_proxy"] = ",".join(self._around())
        if self.bundle is not None:
            found |= dict.fromkeys(_TRUST, str(self.bundle))
        if java := self._java():
            found["JAVA_TOOL_OPTIONS"] = f"{other_java_options(java_options)} {java}".strip()
        return found | {PROVIDERS[name]: url for name, url in self.base_urls.items()}

    def _around(self) -> tuple[str, ...]:
        """The hosts without proxy, including those of base URLs, where the gateway is the server."""
        hosts = (urlsplit(url).hostname or "" for url in self.base_urls.values())
        return tuple(dict.fromkeys((*self.no_proxy, *hosts)))

    def _java(self) -> str:
        """The options of Java, which reads no other variable."""
        found = []
        if self.proxy is not None:
            for scheme in ("http", "https"):
                found.append(f"-D{scheme}.proxyHost={self.proxy.host} -D{scheme}.proxyPort={self.proxy.port}")
            hosts = (f"[{each}]" if ":" in each else f"*{each}" if each[:1] == "." else each for each in self._around())
            found.append(f"-Dhttp.nonProxyHosts={'|'.join(hosts)}")
        if self.java_store is not None:
            found.append(f"-Djavax.net.ssl.trustStore={self.java_store}")
            found.append(f"-Djavax.net.ssl.trustStorePassword={STORE_PASSWORD}")
        return " ".join(found)


def set_before(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The variables of an earlier `env` in this environment. What the user has set besides stays: trust that is not one
    bundle for all, and base URLs of hosts that are not in NO_PROXY.
    """
    names = [each for name in (*_PROXY, "NO_PROXY") for each in (name, name.lower())] + ["NODE_USE_ENV_PROXY"]
    if len({environment.get(name) for name in _TRUST}) == 1:
        names += _TRUST
    around = environment.get("NO_PROXY", "").split(",")
    names += [name for name in PROVIDERS.values() if urlsplit(environment.get(name, "")).hostname in around]
    return tuple(name for name in names if name in environment)


def other_java_options(java_options: str) -> str:
    """The options of Java without those of an earlier `env`."""
    return " ".join(each for each in java_options.split() if not each.startswith(_JAVA))


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without variables for proxies."""
    return {name: value for name, value in environment.items() if not name.lower().endswith(("_proxy", "_noproxy"))}
