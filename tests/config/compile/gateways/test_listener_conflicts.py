"""Listeners of one port, of a Gateway and of its ListenerSets: who loses alone, and who loses together."""

from __future__ import annotations

import base64

import pytest

from egressproxy.config.compile.interface import Compiled
from tests.config.compile.kit import REVERSE, compiled, of_object, said, status
from tests.support.pki import Pki, chain

SET = """
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec:
  parentRef: {name: gw}
  listeners: [{name: extra, port: 9000, protocol: HTTP}]
"""

HOSTED = REVERSE.replace("protocol: HTTP", "protocol: HTTP, hostname: gw.example").replace(
    "  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:"
)


def set_of(name: str, *listeners: str, created: str = "") -> str:
    aged = f', creationTimestamp: "{created}"' if created else ""
    text = SET.replace("{name: more}", f"{{name: {name}{aged}}}")
    return text.replace("{name: extra, port: 9000, protocol: HTTP}", ", ".join(listeners))


def secret(pki: Pki, name: str) -> str:
    leaf = pki.issue(name)
    crt = base64.b64encode(chain(leaf).encode()).decode()
    key = base64.b64encode(leaf.private_key_pem.bytes()).decode()
    return f"""
apiVersion: v1
kind: Secret
metadata: {{name: cert}}
type: kubernetes.io/tls
data: {{tls.crt: {crt}, tls.key: {key}}}
"""


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


def of_set(made: Compiled, condition: str, name: str) -> tuple[str, str]:
    return of_object(made, "ListenerSet", name, condition)[:2]


def of_entry(made: Compiled, owner: str, name: str, condition: str) -> tuple[str, str]:
    (one,) = (each for each in status(made, "ListenerSet", owner)["listeners"] if each["name"] == name)
    return said(one["conditions"], condition)[:2]


@pytest.mark.parametrize("is_at_the_gateway", [True, False])
def test_a_listener_of_a_set_that_loses_to_an_older_one_takes_none_of_its_set_along(is_at_the_gateway: bool):
    """Gateway API's conformance test ListenerSetProtocolConflict; `is_at_the_gateway`: whose listener is older."""
    port = 8080 if is_at_the_gateway else 9000
    http = "{{name: {0}, port: {1}, protocol: HTTP, hostname: {0}.example}}"
    tcp = f"{{name: tcp, port: {port}, protocol: TCP}}"
    older = set_of("set-1", http.format("one", port), http.format("two", port))
    both = set_of("set-2", http.format("three", port), tcp, http.format("four", port))
    alone = set_of("set-3", tcp)
    made = compiled(HOSTED, older, both, alone)
    served = [f"default/set-1/{name}" for name in ("one", "two")] + [
        f"default/set-2/{name}" for name in ("three", "four")
    ]
    assert [one.name for one in made.spec.listeners] == ["web", *served]
    for owner, name in (("set-1", "one"), ("set-1", "two"), ("set-2", "three"), ("set-2", "four")):
        assert of_entry(made, f"default/{owner}", name, "Conflicted") == ("False", "NoConflicts")
        assert of_entry(made, f"default/{owner}", name, "Accepted") == ("True", "Accepted")
        assert of_entry(made, f"default/{owner}", name, "Programmed") == ("True", "Programmed")
    for owner in ("set-2", "set-3"):
        assert of_entry(made, f"default/{owner}", "tcp", "Conflicted") == ("True", "ProtocolConflict")
        assert of_entry(made, f"default/{owner}", "tcp", "Accepted") == ("False", "ProtocolConflict")
        assert of_entry(made, f"default/{owner}", "tcp", "Programmed") == ("False", "ProtocolConflict")
    assert of_set(made, "Accepted", "default/set-1") == ("True", "Accepted")
    assert of_set(made, "Accepted", "default/set-2") == ("True", "ListenersNotValid")
    assert of_set(made, "Programmed", "default/set-2") == ("True", "Programmed")
    assert of_set(made, "Accepted", "default/set-3") == ("False", "ListenersNotValid")
    assert status(made, "Gateway", "default/gw")["attachedListenerSets"] == 2


def test_a_set_whose_stream_listener_is_older_keeps_the_port_from_http():
    tcp = set_of("z", "{name: tcp, port: 9000, protocol: TCP}", created="2024-01-01T00:00:00Z")
    http = set_of("a", "{name: lost, port: 9000, protocol: HTTP}", "{name: won, port: 9001, protocol: HTTP}")
    made = compiled(HOSTED, http, tcp)
    assert [one.name for one in made.spec.listeners] == ["web", "default/z/tcp", "default/a/won"]
    assert of_entry(made, "default/a", "lost", "Conflicted") == ("True", "ProtocolConflict")


def test_listeners_of_one_set_that_conflict_with_each_other_alone_all_lose():
    both = ("{name: tcp, port: 9000, protocol: TCP}", "{name: http, port: 9000, protocol: HTTP}")
    made = compiled(HOSTED, set_of("more", *both, "{name: other, port: 9001, protocol: HTTP}"))
    assert [one.name for one in made.spec.listeners] == ["web", "default/more/other"]
    for name in ("tcp", "http"):
        assert of_entry(made, "default/more", name, "Conflicted") == ("True", "ProtocolConflict")


def test_a_set_that_lost_everything_keeps_nothing_from_a_younger_one():
    lost = set_of("a", "{name: tcp, port: 8080, protocol: TCP}")
    younger = set_of("b", "{name: http, port: 8080, protocol: HTTP}")
    made = compiled(HOSTED, lost, younger)
    assert [one.name for one in made.spec.listeners] == ["web", "default/b/http"]


def test_a_name_that_an_older_set_has_inside_tls_is_lost_alone(pki: Pki):
    """HTTPS and TLS share a port by hostname: the one entry whose name is taken loses, its sibling of that name stays
    out of the conflict of the two."""
    https = "{{name: {0}, port: 9443, protocol: HTTPS, hostname: {1}, tls: {{certificateRefs: [{{name: cert}}]}}}}"
    passes = "{{name: {0}, port: 9443, protocol: TLS, hostname: {1}, tls: {{mode: Passthrough}}}}"
    older = set_of("a", passes.format("first", "x.example"))
    younger = set_of("b", https.format("lost", "x.example"), https.format("won", "y.example"))
    made = compiled(HOSTED, older, younger, secret(pki, "x.example"))
    assert [one.name for one in made.spec.listeners] == ["web", "default/a/first", "default/b/won"]
    assert of_entry(made, "default/b", "lost", "Conflicted") == ("True", "ProtocolConflict")
