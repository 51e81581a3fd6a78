"""What is counted and told of endpoints."""

from __future__ import annotations

import pytest

from egressproxy.errors import Reason
from egressproxy.gateway.server.endpoint_reports import reports_to
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.resilience import HealthCheckIR, OutlierDetectionIR
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.metrics import MAX_EJECTION_SERIES, Metrics
from egressproxy.upstream.endpoint_health import HealthRegistry, Why
from tests.gateway.backends.test_failover import refuse
from tests.gateway.conftest import Start
from tests.gateway.kit import OK, OK_PASSED
from tests.support import manifests as m


def test_ejections_and_returns_are_events_of_the_backend_and_ejections_are_counted():
    metrics = Metrics("0")
    registry = HealthRegistry(reports_to(metrics).endpoint)
    owner = BackendIR("agents/api", Destination.FQDN, kind="Backend.egressproxy.io")
    check = HealthCheckIR(unhealthy_threshold=1)
    health = registry.of("s", "agents/api", owner, "10.0.0.1:443", OutlierDetectionIR(), check, 0.0)
    health.eject(0.0, Why.CONSECUTIVE_5XX)
    health.check_passed(1.0)
    health.check_failed()
    told = [(str(n.regarding), n.severity, n.reason, n.message) for n in metrics.notices.take()]
    assert told == [
        ("Backend agents/api", "Warning", "EndpointEjected",
         "endpoint 10.0.0.1:443 takes no requests: too many answers of 500 and above in a row"),
        ("Backend agents/api", "Normal", "EndpointReturned",
         "endpoint 10.0.0.1:443 takes requests again: health checks passed"),
        ("Backend agents/api", "Warning", "EndpointUnhealthy",
         "endpoint 10.0.0.1:443 takes no requests: health checks failed"),
    ]  # fmt: skip
    assert metrics.ejections == {
        ("agents/api", "10.0.0.1:443", "consecutive_5xx"): 1,
        ("agents/api", "10.0.0.1:443", "health_check_failed"): 1,
    }


def test_ejections_of_many_addresses_share_one_series():
    metrics = Metrics("0")
    for number in range(MAX_EJECTION_SERIES + 5):
        metrics.count_ejection("b", f"10.0.0.{number}:80", "consecutive_5xx")
    assert len(metrics.ejections) == MAX_EJECTION_SERIES + 1
    assert metrics.ejections["b", "_other", "consecutive_5xx"] == 5


def test_the_state_of_endpoints_is_shown_and_that_of_workers_added_up():
    def gathered(state: str):
        metrics = Metrics("0")
        metrics.endpoint_sources.append(lambda: [("b", "e:1", state)])
        metrics.circuit_sources.append(lambda: [("b", "maxConnections")] * 2)
        metrics.count_ejection("b", "e:1", "trial_failed")
        return metrics.gather()

    total = gathered("healthy")
    total.add(gathered("ejected"))
    text = Exposition("0").render(total)[0].decode()
    for line in (
        'egress_endpoint_health{backend="b",endpoint="e:1",state="healthy"} 1.0',
        'egress_endpoint_health{backend="b",endpoint="e:1",state="ejected"} 1.0',
        'egress_endpoint_ejections_total{backend="b",endpoint="e:1",reason="trial_failed"} 2.0',
        'egress_circuit_breakers_open{backend="b",limit="maxConnections"} 4.0',
    ):
        assert line in text
    total.forget_gauges()
    assert "egress_endpoint_health" not in total.families
    assert total.families["egress_endpoint_ejections"].values


def test_parents_that_are_put_aside_and_return_are_events_of_their_backend_and_counted():
    def gathered(*, is_aside: bool):
        metrics = Metrics("0")
        tell = reports_to(metrics).parent
        parent = BackendIR("agents/corp", Destination.FQDN, kind="Backend.egressproxy.io")
        tell(parent, Reason.CONNECT_REFUSED, "refused")
        tell(parent, None, "it is back")
        metrics.parent_sources.append(lambda: [("agents/corp", is_aside), ("agents/other", False)])
        return metrics

    metrics = gathered(is_aside=True)
    told = [(str(n.regarding), n.severity, n.reason, n.message) for n in metrics.notices.take()]
    assert told == [
        ("Backend agents/corp", "Warning", "ParentPutAside", "refused"),
        ("Backend agents/corp", "Normal", "ParentReturned", "it is back"),
    ]
    total = metrics.gather()
    total.add(gathered(is_aside=True).gather())
    text = Exposition("0").render(total)[0].decode()
    for line in (
        'egress_parent_put_aside_total{parent="agents/corp",reason="upstream_refused"} 2.0',
        'egress_parent_aside{parent="agents/corp"} 2.0',
        'egress_parent_aside{parent="agents/other"} 0.0',
    ):
        assert line in text
    total.forget_gauges()
    assert "egress_parent_aside{" not in Exposition("0").render(total)[0].decode()


def test_backends_of_failovers_that_are_put_aside_and_return_are_events_of_their_object():
    metrics = Metrics("0")
    tell = reports_to(metrics).failover
    tell(BackendIR("agents/openai", Destination.FQDN, kind="Backend.egressproxy.io"), "it answers 429", 20.4)
    tell(BackendIR("agents/local", Destination.SERVICE, kind="Service"), "an attempt has ended well", 0.0)
    assert [(str(n.regarding), n.severity, n.reason, n.message) for n in metrics.notices.take()] == [
        (
            "Backend agents/openai",
            "Warning",
            "BackendPutAside",
            "it answers 429: a Failover asks others for 20 s, and then tries it",
        ),
        ("Service agents/local", "Normal", "BackendReturned", "an attempt has ended well: it takes requests again"),
    ]


@pytest.mark.parametrize("answer", [b"429 Busy\r\nRetry-After: 30", None], ids=["a pause", "a refusal"])
def test_a_failover_tells_of_the_backend_that_it_puts_aside(converse: Start, answer: bytes | None):
    backends = (m.backend("a", "a.example", 80), m.backend("b", "b.example", 80), m.failover("any", "a", "b"))
    talk = converse([m.gateway(m.http_listener(8080)), *backends, m.http_route("r", m.prefix_rule("/", "any"))])
    talk.network.reports = reports_to(talk.metrics)
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    if answer is None:
        refuse(talk, "a")
    else:
        talk.dialled("a.example", 80)
        talk.origin >> b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % answer
    talk.dialled("b.example", 80)
    talk.origin >> OK
    talk.client << OK_PASSED
    (told,) = [each for each in talk.metrics.notices.take() if each.reason == "BackendPutAside"]
    assert str(told.regarding) == "Backend agents/a"
    assert told.message.startswith("upstream_refused: " if answer is None else "it answers 429: a Failover asks others")
