"""The filter of a rule with external authorization, with the client of its server's protocol."""

from __future__ import annotations

from egressproxy.envoy.ext_authz.filter import AuthzClient, ExternalAuth
from egressproxy.envoy.ext_authz.http_client import HttpAuthzClient
from egressproxy.filters.chain import Chain
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.ir.route import AuthProtocol, ExternalAuthIR
from egressproxy.routing.destinations import Denial
from egressproxy.telemetry.metrics import Metrics


def external_auth(
    spec: ExternalAuthIR,
    cluster: Cluster | None,
    chain: Chain | None,
    route: str,
    metrics: Metrics,
    closed_by: Denial | None,
) -> ExternalAuth:
    """The filter. `cluster` and `chain` are those of the server; None: every request is refused."""
    client = _client(spec, cluster, chain) if cluster is not None and chain is not None else None
    return ExternalAuth(spec, client, route, metrics, closed_by)


def _client(spec: ExternalAuthIR, cluster: Cluster, chain: Chain) -> AuthzClient:
    if spec.protocol is AuthProtocol.HTTP:
        return HttpAuthzClient(spec, cluster, chain)
    # Here, since it is rarely asked for.
    from egressproxy.envoy.ext_authz.grpc_client import GrpcAuthzClient

    return GrpcAuthzClient(spec, cluster, chain)
