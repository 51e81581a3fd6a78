"""Every filter of a configuration is built once, wherever it is placed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.trial import failures
from egressproxy.spec.backend import BackendSpec, Destination
from egressproxy.spec.gateway import ConfigSpec, ListenerProtocol, ListenerSpec
from egressproxy.spec.policy import ExtensionSpec
from egressproxy.spec.route import (
    AuthProtocol,
    ExternalAuthSpec,
    HttpRouteSpec,
    HttpRuleSpec,
    MirrorSpec,
    StreamRouteSpec,
    WeightedBackend,
)

BAD = ExtensionSpec("bad", "egressproxy.io/Python:v1", "request-headers", config='{"path": "none.py"}', source="X a/b")
GOOD = ExtensionSpec("good", "egressproxy.io/BodyLimit:v1", "request-headers", config='{"maxBytes": 5}')
BACKEND = WeightedBackend(BackendSpec("-", Destination.DYNAMIC), extensions=(BAD,))
PLAIN = WeightedBackend(BackendSpec("-", Destination.DYNAMIC))
AUTH = ExternalAuthSpec(GOOD, AuthProtocol.HTTP, BACKEND)


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
        listener(http_routes=(HttpRouteSpec("a/r", (), (HttpRuleSpec(auth=AUTH),)),)),
        listener(http_routes=(HttpRouteSpec("a/r", (), (HttpRuleSpec(mirrors=(MirrorSpec(BACKEND),)),)),)),
        listener(http_routes=(HttpRouteSpec("a/r", (), (HttpRuleSpec(mirrors=(MirrorSpec(PLAIN, (BAD,)),)),)),)),
        listener(
            http_routes=(
                HttpRouteSpec("a/r", (), (HttpRuleSpec(backends=(replace(PLAIN, mirrors=(MirrorSpec(BACKEND),)),)),)),
            )
        ),
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
