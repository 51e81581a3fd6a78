"""The proxies that are compared, by name."""

from __future__ import annotations

from benchmarks.proxies.base import Proxy
from benchmarks.proxies.interpreted import AioHttp, LiteLlm, LiteLlmBare, MitmProxy, ProxyPy
from benchmarks.proxies.native import Envoy, HaProxy, LeanEnvoy, Nginx, PureEgressProxy, Squid, TinyProxy

_COMPILED = (Envoy, LeanEnvoy, HaProxy, Nginx, Squid, TinyProxy)
_INTERPRETED = (MitmProxy, ProxyPy, AioHttp, LiteLlm, LiteLlmBare, PureEgressProxy)
PEERS: dict[str, type[Proxy]] = {each.name: each for each in (*_COMPILED, *_INTERPRETED)}
#: The others are slow, and asked for by name.
DEFAULT_PEERS = ("envoy", "envoy-lean", "haproxy", "nginx", "squid", "tinyproxy")
