from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

from egressproxy.config.compile.interface import Compiled, Defaults, FilterCatalog
from egressproxy.config.reading.load import ResourceSet, load, load_text
from egressproxy.config.resources.routes import HttpRoute
from egressproxy.filters.catalog import Catalog
from egressproxy.ir.backend import Destination
from tests.config.compile.kit import (
    DYNAMIC,
    FORWARD,
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_route,
    policy,
    rule,
)
from tests.support.compiling import compile_valid

KEY = ("gateway.networking.k8s.io", "HTTPRoute", "default", "route")


def times(made: Compiled) -> list[str]:
    return [condition["lastTransitionTime"] for condition in made.statuses[KEY]["parents"][0]["conditions"]]


def test_the_catalogue_of_the_filters_fits():
    catalog: FilterCatalog = Catalog()
    assert catalog.get(catalog.names()[0]) is not None


def test_a_generation_that_is_written_is_kept():
    made = compiled(REVERSE, PLAIN, ROUTE.replace("{name: route}", "{name: route, generation: 7}"))
    assert made.generations[KEY] == 7
    assert {c["observedGeneration"] for c in made.statuses[KEY]["parents"][0]["conditions"]} == {7}


def test_a_generation_counts_the_changes_of_the_spec_alone():
    first = compiled(REVERSE, PLAIN, ROUTE)
    again = compiled(REVERSE, PLAIN, ROUTE.replace("{name: route}", "{name: route, labels: {a: b}}"), previous=first)
    changed = compiled(REVERSE, PLAIN, ROUTE.replace("rules:", "hostnames: [a.example]\n  rules:"), previous=again)
    assert [made.generations[KEY] for made in (first, again, changed)] == [1, 1, 2]


def test_configurations_are_counted():
    first = compiled(REVERSE)
    assert (first.spec.generation, compiled(REVERSE, previous=first).spec.generation) == (1, 2)


def test_equal_manifests_make_equal_listeners():
    documents = (FORWARD, PLAIN, ROUTE, policy("destinations: {allow: [{hostnames: [a.example]}]}"))
    first = compiled(*documents)
    assert first.spec.listeners == compiled(*documents, previous=first).spec.listeners


def test_a_spec_can_be_a_key():
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {token: sesame}"
    extension = (
        "  extensions: [{name: i, type: 'egressproxy.io/CredentialInjector:v1', "
        "config: {secretRef: {name: key, key: token}, header: a}}]\n"
    )
    hosts = policy("dns: {hosts: {a.example: [10.0.0.1]}}\naddresses: {allow: [{cidrs: [10.0.0.0/8]}]}")
    documents = (FORWARD, PLAIN + extension, ROUTE, secret, hosts)
    assert hash(compiled(*documents).spec) == hash(compiled(*documents).spec)


def test_a_condition_keeps_its_time_until_its_status_changes():
    first = compiled(REVERSE, PLAIN, ROUTE)
    early = "2024-01-01T00:00:00Z"
    for condition in first.statuses[KEY]["parents"][0]["conditions"]:
        condition["lastTransitionTime"] = early
    assert times(compiled(REVERSE, PLAIN, ROUTE, previous=first)) == [early, early]
    without_backend = compiled(REVERSE, ROUTE, previous=first)
    assert times(without_backend)[0] == early
    assert times(without_backend)[1] > early


def test_a_chain_through_a_parent_serves_tunnels_and_requests():
    parent = PLAIN.replace("name: plain", "name: parent").replace("a.example", "parent.example")
    chained = DYNAMIC.replace("Dynamic}}", "Dynamic}, parent: {name: parent}}")
    tunnel = """
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: tunnels}
spec:
  parentRefs: [{name: gw, sectionName: forward}]
  hostnames: [a.example]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: dynamic}]}]
"""
    http = ROUTE.replace("name: plain}", "name: dynamic}")
    found = listener(compiled(FORWARD, parent, chained, tunnel, http))
    for weighted in (found.tls_routes[0].backends[0], found.http_routes[0].rules[0].backends[0]):
        assert weighted.backend is not None
        assert weighted.backend.destination is Destination.DYNAMIC
        assert weighted.backend.parent is not None
        assert weighted.backend.parent.hostname == "parent.example"
    assert found.default_backend is not None
    assert found.default_backend.backend is not None
    assert found.default_backend.backend.parent is None


def test_a_route_at_a_closed_listener_says_that_it_is_not_served():
    gateway = REVERSE.replace("protocol: HTTP}", "protocol: HTTPS, tls: {certificateRefs: [{name: gone}]}}")
    made = compiled(gateway, PLAIN, ROUTE)
    assert of_route(made, "Accepted")[0] == "True"
    assert "not served: web" in of_route(made, "Accepted")[2]


def test_an_empty_set_compiles_to_nothing():
    made = compile_valid(ResourceSet(), Catalog(), Defaults())
    assert made.spec.listeners == ()


def test_status_holds_no_secret():
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {token: open-sesame}"
    extension = (
        "  extensions: [{name: i, type: 'egressproxy.io/CredentialInjector:v1', "
        "config: {secretRef: {name: key, key: token}, header: a}}]\n"
    )
    made = compiled(REVERSE, PLAIN + extension, ROUTE, secret)
    assert rule(made).backends[0].extensions[0].secrets
    assert "open-sesame" not in repr(made)


def test_ten_thousand_rules_compile_in_the_time_of_a_reload():
    template = load_text(ROUTE).of(HttpRoute)[0]
    one = template.spec.rules[0]
    routes = []
    for number in range(625):
        hostnames = (f"h{number}.example",)
        spec = template.spec.model_copy(update={"rules": (one,) * 16, "hostnames": hostnames})
        metadata = template.metadata.model_copy(update={"name": f"route-{number}"})
        routes.append(template.model_copy(update={"spec": spec, "metadata": metadata}))
    limits = policy("limits: {maxBodyBytes: 1000}\ndestinations: {allow: [{hostnames: [a.example]}]}")
    rest = load_text("\n---\n".join([FORWARD, PLAIN, limits]))
    resources = ResourceSet([*rest.objects, *routes])
    started = time.process_time()
    made = compile_valid(resources, Catalog(), Defaults())
    took = time.process_time() - started
    assert sum(len(found.rules) for found in listener(made).http_routes) == 10_000
    assert took < 15, "the aim is two seconds; the square of their number would take minutes"


# --- since when objects are there -------------------------------------------------------------------------------------


def _tcp_route(name: str) -> str:
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {{name: {name}}}
spec:
  parentRefs: [{{name: gw}}]
  rules: [{{backendRefs: [{{group: egressproxy.io, kind: Backend, name: plain}}]}}]
"""


def _of_files(folder: Path, previous: Compiled | None = None) -> Compiled:
    return compile_valid(load([folder]), Catalog(), Defaults(), previous)


def _written(folder: Path, name: str, text: str, day: int) -> None:
    file = folder / f"{name}.yaml"
    file.write_text(text)
    seconds = datetime(2024, 1, day, tzinfo=UTC).timestamp()
    os.utime(file, (seconds, seconds))


def test_an_object_is_there_since_its_file_was_changed_when_it_was_first_read(tmp_path: Path):
    aged = PLAIN.replace("plain}", 'aged, creationTimestamp: "2020-01-01T00:00:00Z"}')
    _written(tmp_path, "a", f"{FORWARD}---{aged}", 1)
    first = _of_files(tmp_path)
    gateway = ("gateway.networking.k8s.io", "Gateway", "default", "gw")
    assert first.created == {gateway: "2024-01-01T00:00:00Z"}
    _written(tmp_path, "a", f"{FORWARD}---{aged}", 3)
    _written(tmp_path, "b", PLAIN, 4)
    second = _of_files(tmp_path, first)
    plain = ("egressproxy.io", "Backend", "default", "plain")
    assert second.created == {gateway: "2024-01-01T00:00:00Z", plain: "2024-01-04T00:00:00Z"}
    (tmp_path / "b.yaml").unlink()
    assert plain not in _of_files(tmp_path, second).created


def test_a_time_that_means_none_is_none(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(FORWARD)
    for seconds in (0, 1, 1 << 42):
        os.utime(tmp_path / "a.yaml", (seconds, seconds))
        assert not _of_files(tmp_path).created


def test_the_time_of_a_file_decides_nothing(tmp_path: Path):
    gateway = FORWARD.replace("egressproxy.io/forward-proxy", "TCP")
    _written(tmp_path, "common", f"{gateway}---{PLAIN}", 5)
    _written(tmp_path, "old", _tcp_route("b-old-file"), 1)
    _written(tmp_path, "new", _tcp_route("a-new-file"), 9)
    made = _of_files(tmp_path)
    verdict = of_route(made, "egressproxy.io/Conflicted", "default/b-old-file", "TCPRoute")
    assert "TCPRoute default/a-new-file is older or precedes it by name" in verdict[2]
    _written(tmp_path, "new", _tcp_route("a-new-file").replace("a-new-file}", "a-new-file, labels: {a: b}}"), 9)
    dated = _tcp_route("z-dated").replace("z-dated}", 'z-dated, creationTimestamp: "2024-01-08T00:00:00Z"}')
    _written(tmp_path, "dated", dated, 9)
    assert of_route(_of_files(tmp_path, made), "egressproxy.io/Conflicted", "default/z-dated", "TCPRoute")[0] == ""
