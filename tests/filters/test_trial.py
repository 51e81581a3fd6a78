"""Every filter of a configuration is built once, wherever it is placed."""

from __future__ import annotations

import pytest

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.trial import failures
from egressproxy.spec.backend import BackendSpec, Destination
from egressproxy.spec.gateway import ConfigSpec, ListenerProtocol, ListenerSpec
from egressproxy.spec.policy import ExtensionSpec
from egressproxy.spec.route import HttpRouteSpec, HttpRuleSpec, StreamRouteSpec, WeightedBackend

BAD = ExtensionSpec("bad", "egressproxy.io/Python:v1", "request-headers", config='{"path": "none.py"}', source="X a/b")
GOOD = ExtensionSpec("good", "egressproxy.io/BodyLimit:v1", "request-headers", config='{"maxBytes": 5}')
BACKEND = WeightedBackend(BackendSpec("-", Destination.DYNAMIC), extensions=(BAD,))


def listener(**parts: object) -> ConfigSpec:
    made = ListenerSpec("a/gw", "l", ("127.0.0.1",), 1, ListenerProtocol.HTTP, **parts)  # type: ignore[arg-type]
    return ConfigSpec((made,))


@pytest.mark.parametrize(
    "config",
    [
        listener(extensions=(GOOD, BAD, BAD)),
        listener(default_backend=BACKEND),
        listener(http_routes=(HttpRouteSpec("a/r", (), (HttpRuleSpec(extensions=(BAD,)),)),)),
        listener(http_routes=(HttpRouteSpec("a/r", (), (HttpRuleSpec(backends=(BACKEND,)),)),)),
        listener(tls_routes=(StreamRouteSpec("a/r", (), (), extensions=(BAD,)),)),
        listener(tcp_routes=(StreamRouteSpec("a/r", (), (BACKEND,)),)),
    ],
)
def test_a_filter_that_cannot_be_built_is_found_wherever_it_stands(config: ConfigSpec) -> None:
    ((spec, error),) = failures(config, Catalog())
    assert spec is BAD
    assert str(error).startswith("X a/b: filter bad (egressproxy.io/Python:v1): none.py: ")


def test_filters_that_can_be_built_are_no_failures() -> None:
    assert list(failures(listener(extensions=(GOOD,)), Catalog())) == []
