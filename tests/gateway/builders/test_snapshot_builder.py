"""The live form of a configuration, made in steps."""

from __future__ import annotations

import inspect
import ssl
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from egressproxy.ai.backends.call import import_translation
from egressproxy.errors import Denied, Reason
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import run
from egressproxy.filters.instances import FilterBuildError
from egressproxy.gateway.builders.snapshot_builder import SnapshotBuilder
from egressproxy.gateway.route import SELF_SERVICE
from egressproxy.gateway.server.gateway_server import GatewayServer
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.ir.gateway import CertificateIR, ConfigIR, ListenerProtocol, ListenerTlsIR
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead
from egressproxy.model.secret import SecretBytes
from egressproxy.model.work import BlockingWork, at_once
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.metrics import Metrics
from tests.support import manifests as m
from tests.support.conversation import compiled_spec
from tests.support.net import free_port
from tests.support.pki import Pki

ROUTES = 50
FILTER = """
from egressproxy.filters import Filter
import threading
class Mine(Filter):
    thread = threading.get_ident()
    def request_headers(self, x):
        return None
"""


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayServer]:
    made = GatewayServer(Catalog(), Metrics("0"), AccessLog("off"))
    yield made
    await made.drain(0)


@pytest.fixture(scope="module")
def config() -> ConfigIR:
    rule = m.prefix_rule("/", "origin")
    return compiled_spec(
        [
            m.gateway(m.forward_listener(3128), m.http_listener(8080)),
            m.policy(["a.test"]),
            m.backend("origin", "origin.test", 80),
            *(m.http_route(f"r{n}", rule, hostnames=[f"h{n}.test"], section="http") for n in range(ROUTES)),
        ]
    )


def steps(gateway: GatewayServer, config: ConfigIR) -> BlockingWork[Snapshot]:
    return SnapshotBuilder(gateway.catalog, gateway.network, gateway.metrics, gateway.snapshot).snapshot(config)


async def test_it_pauses_at_least_once_for_every_rule(gateway: GatewayServer, config: ConfigIR):
    assert len(list(steps(gateway, config))) >= ROUTES


async def test_what_translates_is_imported_in_one_step_however_many_rules_need_it(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delitem(sys.modules, "egressproxy.ai.translation.translator", raising=False)
    provider = m.backend("a", "a.test", 80)
    provider["spec"]["destination"]["ports"][0]["protocolOptions"] = {"ai": {"apis": ["OpenAIChat"]}}
    rule = m.prefix_rule("/", "a")
    routes = (m.http_route(f"r{n}", rule, hostnames=[f"h{n}.test"]) for n in range(ROUTES))
    config = compiled_spec([m.gateway(m.http_listener(8080)), m.policy(), provider, *routes])
    taken = []
    for step in steps(gateway, config):
        if step is not None:
            step()
            taken.append(step)
    assert taken == [import_translation]


async def test_a_listener_keeps_what_was_said_of_it_but_not_the_routes_which_are_in_its_tables(
    gateway: GatewayServer, config: ConfigIR
):
    snapshot = at_once(steps(gateway, config))
    live = snapshot.ports["127.0.0.1", 8080].first
    assert replace(live.spec, http_routes=config.listeners[1].http_routes) == config.listeners[1]
    assert live.spec.http_routes == ()
    assert live.hosts.match(f"h{ROUTES - 1}.test")


def with_filter(config: ConfigIR, folder: Path) -> ConfigIR:
    spec = ExtensionIR(
        "mine", "egressproxy.io/Python:v1", "request-headers", config='{"path": "mine.py"}', folder=str(folder)
    )
    forward = replace(config.listeners[0], extensions=(spec,))
    return ConfigIR((forward, *config.listeners[1:]), 1)


async def test_a_filter_that_runs_code_of_others_is_built_in_another_thread(
    gateway: GatewayServer, config: ConfigIR, tmp_path: Path
):
    (tmp_path / "mine.py").write_text(FILTER)
    snapshot = await gateway.prepare(with_filter(config, tmp_path))
    default = snapshot.ports["127.0.0.1", 3128].first.defaults
    assert default is not None
    assert default.route.chain.request_headers is not None
    watched = default.route.chain.request_headers[0].call
    made = inspect.getclosurevars(watched).nonlocals["method"].__self__
    assert made.thread != threading.get_ident()


async def test_a_part_that_cannot_be_built_leaves_what_is_in_service(
    gateway: GatewayServer, config: ConfigIR, tmp_path: Path
):
    (tmp_path / "mine.py").write_text("raise RuntimeError")
    clusters = dict(gateway.network._resolvers)
    with pytest.raises(FilterBuildError, match="mine"):
        await gateway.prepare(with_filter(config, tmp_path))
    assert gateway.snapshot is None
    assert gateway.network._resolvers == clusters


async def test_code_of_others_runs_when_all_the_rest_is_built_and_once(
    gateway: GatewayServer, config: ConfigIR, tmp_path: Path
):
    ran = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(ran)!r}, 'a').write('x')\n{FILTER}")
    forward, web = (replace(each, port=free_port()) for each in with_filter(config, tmp_path).listeners)
    good = ConfigIR((forward, web), 1)
    bad_tls = ListenerTlsIR(certificates=(CertificateIR("c", "no certificate", SecretBytes(b"no key")),))
    with pytest.raises(ssl.SSLError):
        await gateway.prepare(ConfigIR((forward, replace(web, protocol=ListenerProtocol.HTTPS, tls=bad_tls)), 1))
    assert not ran.exists()
    limit = ExtensionIR("limit", "egressproxy.io/BodyLimit:v1", "connect", config='{"maxBytes": 5}')
    with pytest.raises(FilterBuildError, match="limit"):
        await gateway.prepare(
            ConfigIR((forward, replace(web, extensions=(limit,), default_backend=forward.default_backend)), 1)
        )
    assert not ran.exists()
    await gateway.put_into_service(await gateway.prepare(good))
    assert ran.read_text() == "x"
    await gateway.prepare(good)
    assert ran.read_text() == "x"  # it lives on


async def test_code_of_others_leaves_the_sessions_of_a_port_with_one_listener_resumable(
    gateway: GatewayServer, config: ConfigIR, tmp_path: Path
):
    """Such a configuration is built twice; counted twice, its one listener would look like two."""
    (tmp_path / "mine.py").write_text(FILTER)
    forward, web = with_filter(config, tmp_path).listeners
    tls = ListenerTlsIR(certificates=(Pki().certificate("a.test"),))
    secure = ConfigIR((forward, replace(web, protocol=ListenerProtocol.HTTPS, tls=tls)), 1)
    port = (await gateway.prepare(secure)).ports["127.0.0.1", 8080]
    assert port.tls is not None
    assert port.tls.num_tickets > 0


async def test_long_lists_of_ranges_are_shared_by_all_backends_and_over_reloads(gateway: GatewayServer):
    """Comparing and compiling them for each backend took seconds, and as many copies of them."""
    backends = [m.backend(f"b{number}", f"b{number}.test", 80) for number in range(3)]
    routes = [m.http_route(f"r{number}", m.prefix_rule("/", f"b{number}")) for number in range(3)]
    deny = {"deny": [{"cidrs": ["203.0.113.0/24"]}]}
    objects = [m.gateway(m.forward_listener(3128)), m.policy(destinations=deny), *backends, *routes]
    first = at_once(steps(gateway, compiled_spec(objects)))
    rules = {id(cluster.spec.addresses) for cluster in first.clusters.values()}
    assert len(rules) == 1
    builder = SnapshotBuilder(gateway.catalog, gateway.network, gateway.metrics, first)
    again = builder.snapshot(compiled_spec(objects))
    assert {id(cluster.spec.addresses) for cluster in at_once(again).clusters.values()} == rules


@pytest.mark.parametrize("placeholder", [b"sk-egress-mine-0123456789", b"sk-egress-other-987654321"])
async def test_a_rule_without_backends_is_watched_for_every_placeholder(gateway: GatewayServer, placeholder: bytes):
    """As `serve-filters` runs it, where Envoy knows the backend: the chain of the rule is that of the backend, too."""
    backends = [
        m.backend(name, f"{name}.example", 443, extensions=[
            {"name": "key", "type": "egressproxy.io/CredentialInjector:v1",
             "config": {"secretRef": {"name": "key"}, "placeholder": f"sk-egress-{held}"}},
        ])
        for name, held in (("a", "mine-0123456789"), ("b", "other-987654321"))
    ]  # fmt: skip
    rules = [m.prefix_rule("/a", "a"), m.prefix_rule("/b", "b")]
    objects = [m.gateway(m.http_listener(8080)), m.secret("key", {"token": "REAL-KEY"}), *backends]
    rules.append({"matches": [{"path": {"type": "PathPrefix", "value": "/envoys"}}]})
    snapshot = at_once(steps(gateway, compiled_spec([*objects, m.http_route("r", *rules)])))
    (port,) = snapshot.ports.values()
    (chain,) = [
        route.chain for _, route in port.first.http.every() if not route.backends and route.kind != SELF_SERVICE
    ]
    x = Exchange("-", "-", "-", 0.0)
    x.request = RequestHead(b"GET", b"/envoys", Fields.of([(b"authorization", b"Bearer " + placeholder)]))
    assert chain.backend_request is not None
    with pytest.raises(Denied) as denial:
        run(chain.backend_request, x)
    assert denial.value.reason is Reason.PLACEHOLDER_MISPLACED
