"""Every filter of a configuration is built once, wherever it is placed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.instances import FilterBuildError, UnusableFilter
from egressproxy.filters.trial import failures
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.gateway import ConfigIR, ListenerIR, ListenerProtocol
from egressproxy.ir.policy import ExtensionIR
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
        listener(http_routes=(HttpRouteIR("a/r", (), (HttpRuleIR(auth=AUTH),)),)),
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


KEYED = """
from egressproxy.filters import Filter

class Keyed(Filter):
    def __init__(self, context):
        int(context.secrets["s/k"].reveal())

    def request_headers(self, x):
        pass
"""


def test_a_secret_that_does_not_fit_is_told_of_operators_code_alone(tmp_path: Path):
    (tmp_path / "keyed.py").write_text(KEYED)
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
