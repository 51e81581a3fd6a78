"""When filters are made, kept and closed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from egressproxy.errors import GatewayFault, Reason
from egressproxy.filters import Exchange, Filter, FilterContext, Phase
from egressproxy.filters.base import FilterType, UnusableReference
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import Chain, compile_chain, run
from egressproxy.filters.instances import FilterBuildError, FilterInstances, UnusableFilter, failures
from egressproxy.filters.settings import FilterConfig
from egressproxy.filters.testing import exchange
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.gateway import ConfigIR, ListenerIR, ListenerProtocol
from egressproxy.ir.policy import BACKEND_LEVEL, ExtensionIR
from egressproxy.ir.route import (
    AuthProtocol,
    ExternalAuthIR,
    HttpRouteIR,
    HttpRuleIR,
    MirrorIR,
    StreamRouteIR,
    WeightedBackend,
)
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.event_aggregator import EventAggregator
from egressproxy.telemetry.metrics import Metrics
from tests.gateway.kit import forward
from tests.support.conversation import conversation, scripted_filter


@dataclass(frozen=True, slots=True)
class NoConfig(FilterConfig):
    """Nothing."""


class Closing(Filter):
    def __init__(self, context: FilterContext | None = None) -> None:
        self.closed = 0
        self.fails = False
        if context is not None:
            context.meter.gauge("open_calls", "Calls.").set(1)
            self.context = context

    def request_headers(self, x: Exchange) -> None:
        pass

    def close(self) -> None:
        self.closed += 1
        if self.fails:
            raise SystemExit


TYPE = FilterType("test/Any:v1", frozenset(Phase), NoConfig, Closing)


def place(name: str = "a") -> ExtensionIR:
    return ExtensionIR(name, TYPE.name, "request-headers", source="EgressPolicy a/p")


def made(previous: FilterInstances | None, metrics: Metrics, *names: str) -> tuple[FilterInstances, list[Any]]:
    instances = FilterInstances(Catalog([TYPE]), previous, metrics.notices, None, metrics.filter_metrics)
    return instances, [instances.place(place(name)).filter for name in names]


def test_a_filter_is_closed_once_when_a_reload_has_replaced_it():
    metrics = Metrics("1")
    first, (a, b) = made(None, metrics, "a", "b")
    first.seal()
    second, (kept, c) = made(first, metrics, "a", "c")
    assert kept is a
    assert (a.closed, b.closed) == (0, 0)
    second.seal()
    second.seal()
    assert (a.closed, b.closed, c.closed) == (0, 1, 0)
    assert metrics.gather().families["open_calls"].values == {("a",): 1, ("c",): 1}
    second.close()
    assert (a.closed, b.closed, c.closed) == (1, 1, 1)
    assert "open_calls" not in metrics.gather().families


def test_a_configuration_that_does_not_come_into_service_closes_what_it_has_made_alone():
    metrics = Metrics("1")
    first, (a,) = made(None, metrics, "a")
    first.seal()
    second, (_, b) = made(first, metrics, "a", "b")
    second.close()
    assert (a.closed, b.closed) == (0, 1)


def test_a_filter_that_fails_as_it_is_closed_does_not_hold_up_the_reload():
    metrics = Metrics("1")
    first, (a, b) = made(None, metrics, "a", "b")
    first.seal()
    a.fails = True
    second, _ = made(first, metrics)
    second.seal()
    assert (a.closed, b.closed) == (1, 1)
    assert "SystemExit" in metrics.notices.take()[0].message


def test_a_filter_tells_of_itself_at_the_object_that_declares_it():
    metrics = Metrics("1")
    _, (a,) = made(None, metrics, "a")
    a.context.notices.warning("EngineDown", "no answer")
    notice = metrics.notices.take()[0]
    assert (str(notice.regarding), notice.message) == ("EgressPolicy a/p", "filter a: no answer")


def test_a_metric_of_another_form_refuses_the_configuration():
    class Wrong(Filter):
        def __init__(self, context: FilterContext) -> None:
            context.meter.counter("open_calls", "Calls.")

        def request_headers(self, x: Exchange) -> None:
            pass

    metrics = Metrics("1")
    made(None, metrics, "a")
    kind = FilterType("test/Wrong:v1", frozenset(Phase), NoConfig, Wrong)
    instances = FilterInstances(Catalog([kind]), None, metrics.notices, None, metrics.filter_metrics)
    with pytest.raises(FilterBuildError, match="open_calls is there already"):
        instances.place(ExtensionIR("w", kind.name, "request-headers"))


def test_a_reload_closes_the_filters_that_it_has_left_out():
    a, b = Closing(), Closing()
    both = forward(extensions=[scripted_filter("a"), scripted_filter("b")])
    talk = conversation(both, filters={"a": a, "b": b})
    try:
        talk.reload(forward(extensions=[scripted_filter("a")]))
        assert (a.closed, b.closed) == (0, 1)
    finally:
        talk.close()


# --- a Secret that does not fit ----------------------------------------------------------------------------------
STATE = {"fits": False}


class Keyed(Filter):
    def __init__(self, context: FilterContext) -> None:
        if not STATE["fits"]:
            raise UnusableReference("the key is none")


KEYED = FilterType("a.example/Keyed:v1", frozenset(Phase), NoConfig, Keyed)


def closed(phase: Phase, level: int = 1) -> Chain:
    spec = ExtensionIR("mine", KEYED.name, phase.value, level=level, fail_open=True, config="{}", source="Backend a/b")
    return compile_chain([spec], FilterInstances(Catalog([KEYED])).place_or_close)


@pytest.mark.parametrize("level", [0, 1, BACKEND_LEVEL])
@pytest.mark.parametrize("phase", Phase)
def test_it_refuses_in_every_phase_before_anything_is_sent(phase: Phase, level: int):
    chain = closed(phase, level)
    of_attempts = level == BACKEND_LEVEL or phase in (Phase.CONNECT, Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE)
    steps = chain.backend_request if of_attempts else chain.request_headers
    assert (chain.connect is not None) == (phase is Phase.CONNECT)
    for each in (steps, *filter(None, (chain.connect,))):
        assert each is not None
        with pytest.raises(GatewayFault, match=r"filter mine .* cannot be used") as caught:
            run(each, exchange("GET", "http://a.test/"))
        error = caught.value
        assert (error.status, error.reason, error.rule) == (503, Reason.FILTER_UNUSABLE, "Backend a/b")
        assert "none" not in f"{error.message} {error.remedy}"  # what is wrong is for the operator alone


def test_it_is_built_again_in_each_snapshot_and_told_when_it_is_in_service():
    notices = EventAggregator()
    spec = ExtensionIR("mine", KEYED.name, "request-headers", config="{}", source="Backend a/b")
    first = FilterInstances(Catalog([KEYED]), notices=notices)
    with pytest.raises(UnusableFilter, match=r"Backend a/b: filter mine .*: the key is none"):
        first.place(spec)
    placed = first.place_or_close(spec)
    assert first.place_or_close(spec) is placed
    assert not list(notices.take())
    first.seal()
    (told,) = notices.take()
    assert (told.reason, told.regarding.name) == ("FilterUnusable", "b")
    assert "the key is none; requests that need it are refused until it is mended" in told.message
    STATE["fits"] = True
    try:
        assert isinstance(FilterInstances(Catalog([KEYED]), first).place_or_close(spec).filter, Keyed)
    finally:
        STATE["fits"] = False


BAD = ExtensionIR("bad", "egressproxy.io/Python:v1", "request-headers", config='{"path": "none.py"}', source="X a/b")
GOOD = ExtensionIR("good", "egressproxy.io/BodyLimit:v1", "request-headers", config='{"maxBytes": 5}')
BACKEND = WeightedBackend(BackendIR("-", Destination.DYNAMIC), extensions=(BAD,))
PLAIN = WeightedBackend(BackendIR("-", Destination.DYNAMIC))
AUTH = ExternalAuthIR(GOOD, AuthProtocol.HTTP, BACKEND)


def listener(**parts: object) -> ConfigIR:
    made = ListenerIR("a/gw", "l", ("127.0.0.1",), 1, ListenerProtocol.HTTP, **parts)  # type: ignore[arg-type]
    return ConfigIR((made,))


@pytest.mark.parametrize(
    "config",
    [
        listener(extensions=(GOOD, BAD, BAD)),
        listener(default_backend=BACKEND),
        listener(http_routes=(HttpRouteIR("a/r", (), (HttpRuleIR(extensions=(BAD,)),)),)),
        listener(http_routes=(HttpRouteIR("a/r", (), (HttpRuleIR(backends=(BACKEND,)),)),)),
        listener(http_routes=(HttpRouteIR("a/r", (), (HttpRuleIR(auths=(AUTH,)),)),)),
        listener(http_routes=(HttpRouteIR("a/r", (), (HttpRuleIR(mirrors=(MirrorIR(BACKEND),)),)),)),
        listener(http_routes=(HttpRouteIR("a/r", (), (HttpRuleIR(mirrors=(MirrorIR(PLAIN, (BAD,)),)),)),)),
        listener(
            http_routes=(
                HttpRouteIR("a/r", (), (HttpRuleIR(backends=(replace(PLAIN, mirrors=(MirrorIR(BACKEND),)),)),)),
            )
        ),
        listener(tls_routes=(StreamRouteIR("a/r", (), (), extensions=(BAD,)),)),
        listener(tcp_routes=(StreamRouteIR("a/r", (), (BACKEND,)),)),
    ],
)
def test_a_filter_that_cannot_be_built_is_found_wherever_it_stands(config: ConfigIR) -> None:
    ((spec, error),) = failures(config, Catalog())
    assert spec is BAD
    assert str(error).startswith("X a/b: filter bad (egressproxy.io/Python:v1): none.py: ")


def test_filters_that_can_be_built_are_no_failures() -> None:
    assert list(failures(listener(extensions=(GOOD,)), Catalog())) == []


def test_no_file_is_run_while_anything_else_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    python = replace(BAD, config='{"path": "a.py"}', folder=str(tmp_path))
    first = [spec for spec, _ in failures(listener(extensions=(python, BAD)), Catalog())]
    assert first == [BAD]
    assert not (tmp_path / "ran").exists()
    ((spec, error),) = failures(listener(extensions=(GOOD, python)), Catalog())
    assert spec is python
    assert "found: none" in str(error)
    assert (tmp_path / "ran").exists()


def test_a_filter_that_cannot_stand_where_it_is_is_told():
    cache = ExtensionIR("cache", "egressproxy.io/Cache:v1", "request-headers", 10, source="EgressPolicy a/b")
    last = ExtensionIR("last", "egressproxy.io/BodyLimit:v1", "request-headers", 20, config='{"maxBytes": 5}')
    unknown = ExtensionIR("unknown", "a.example/X:v1", "request-headers", is_known=False)
    config = listener(http_routes=(HttpRouteIR("a/r", (), (HttpRuleIR(extensions=(cache, last, unknown)),)),))
    ((spec, error),) = failures(config, Catalog())
    assert spec is cache
    assert "filter last runs behind the cache" in str(error)
    early = replace(last, priority=5)
    config = listener(http_routes=(HttpRouteIR("a/r", (), (HttpRuleIR(extensions=(cache, early, unknown)),)),))
    assert failures(config, Catalog()) == []


KEYED_FILE = """
from egressproxy.filters import Filter

class Keyed(Filter):
    def __init__(self, context):
        int(context.secrets["s/k"].reveal())

    def request_headers(self, x):
        pass
"""


def test_a_secret_that_does_not_fit_is_told_of_operators_code_alone(tmp_path: Path):
    (tmp_path / "keyed.py").write_text(KEYED_FILE)
    code = '{"path": "keyed.py", "secrets": [{"name": "s", "key": "k"}]}'
    secrets = (("s/k", SecretBytes(b"hush")),)
    python = replace(BAD, config=code, folder=str(tmp_path), secrets=secrets)
    injector = '{"secretRef": {"name": "s", "key": "k"}, "scrubResponses": true, "template": "{}"}'
    short = ExtensionIR("short", "egressproxy.io/CredentialInjector:v1", "backend-request", config=injector)
    config = listener(extensions=(python, replace(short, secrets=secrets)))
    ((spec, error),) = failures(config, Catalog())
    assert (spec, type(error)) == (python, UnusableFilter)
    assert "ValueError while Keyed was built" in str(error)
    assert "hush" not in str(error)
    missing = replace(python, secrets=())
    ((spec, error),) = failures(listener(extensions=(missing,)), Catalog())
    assert type(error) is UnusableFilter
    without = replace(python, config='{"path": "keyed.py"}', secrets=())
    ((spec, error),) = failures(listener(extensions=(without,)), Catalog())
    assert type(error) is FilterBuildError  # the file alone is at fault: that refuses the configuration
    assert [type(each) for _, each in failures(listener(extensions=(python, BAD)), Catalog())] == [FilterBuildError]
