"""What status says of backends whose place a policy denies."""

from __future__ import annotations

import pytest

from egressproxy.config.compile.status.status_warnings import status_warnings
from egressproxy.config.reading.load import load_text
from tests.config.compile.kit import DYNAMIC, FORWARD, PLAIN, REVERSE, ROUTE, compiled, policy

DENY = "destinations: {deny: [{hostnames: [a.example]}]}"
MIRROR = """
    filters:
    - type: RequestMirror
      requestMirror: {backendRef: {group: egressproxy.io, kind: Backend, name: plain}}
"""


def warnings(*manifests: str) -> list[str]:
    """As `check` shows them."""
    resources = load_text("\n---\n".join(manifests), "config.yaml")
    found = (problem.message for problem in status_warnings(resources, compiled(*manifests)))
    return [message for message in found if not message.startswith("Insecure")]


@pytest.mark.parametrize("target", [("Gateway", "gw"), ("HTTPRoute", "route"), ("Backend", "plain")])
def test_a_route_to_a_denied_place_is_warned_of_in_the_words_of_the_denial(target: tuple[str, str]):
    (warning,) = warnings(REVERSE, PLAIN, ROUTE, policy(DENY, *target))
    assert warning == (
        "parent gw: egressproxy.io/Denied is True (DestinationDenied): a.example is denied by policy default/policy "
        '(backend default/plain leads to a.example:80; denied by {hostnames: ["a.example"]} in destinations.deny): '
        "listener web refuses what goes there (403). "
        "To allow it, remove or narrow its entry in destinations.deny of that policy."
    )


def test_two_denied_backends_of_a_route_are_told_in_two_sentences():
    other = PLAIN.replace("plain", "other").replace("a.example", "b.example")
    both = f"{ROUTE.rstrip()[:-1]}, {{group: egressproxy.io, kind: Backend, name: other}}]\n"
    (warning,) = warnings(REVERSE, PLAIN, other, both, policy(DENY.replace("[a.example]", "[a.example, b.example]")))
    assert "of that policy. b.example is denied by policy default/policy (" in warning
    assert warning.endswith("in destinations.deny of that policy.")


def test_report_mode_is_told_too():
    (warning,) = warnings(REVERSE, PLAIN, ROUTE, policy(f"{DENY}\nmode: Report"))
    assert warning.endswith("mode is Report, so listener web lets it pass and counts it.")


def test_a_route_in_report_mode_is_told_that_its_gateway_denies_the_place():
    reporting = policy("mode: Report", "HTTPRoute", "route", policy_name="reporting")
    (warning,) = warnings(REVERSE, PLAIN, ROUTE, policy(DENY), reporting)
    assert "listener web refuses what goes there (403)" in warning


def test_a_mirror_to_a_denied_place_is_told():
    other = PLAIN.replace("plain", "other").replace("a.example", "b.example")
    route = ROUTE.replace("name: plain}", "name: other}") + MIRROR
    (warning,) = warnings(REVERSE, PLAIN, other, route, policy(DENY))
    assert "listener web mirrors nothing there. To allow it, remove or narrow its entry in destinations.deny" in warning


def test_a_deny_of_something_else_is_no_warning():
    assert warnings(REVERSE, PLAIN, ROUTE, policy(DENY.replace("a.example", "b.example"))) == []
    assert warnings(REVERSE, PLAIN, ROUTE, policy(DENY.replace("]}]}", "], ports: [443]}]}"))) == []


@pytest.mark.parametrize(
    ("hostnames", "sections", "is_warned_of"),
    [
        ("", "mode: Enforce", True),
        ("", "destinations: {allow: []}", True),
        ("", "destinations: {allow: [{hostnames: [a.example]}]}", False),
        ("", "mode: Open", False),
        ("  hostnames: [a.example]\n", "mode: Enforce", False),
    ],
)
def test_a_route_to_wherever_the_request_says_that_can_reach_nothing_is_warned_of(
    hostnames: str, sections: str, is_warned_of: bool
):
    route = ROUTE.replace("name: plain", "name: dynamic").replace("  rules:", f"{hostnames}  rules:")
    found = warnings(FORWARD, DYNAMIC, route, policy(sections))
    assert any("(NothingPermitted)" in message for message in found) is is_warned_of


IP = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: plain}
spec:
  destination: {type: Ip, ip: {address: 10.0.0.7}, ports: [{number: 80}]}
"""


@pytest.mark.parametrize("mode", ["Enforce", "Report"])
@pytest.mark.parametrize("section", ["destinations", "addresses"])
def test_a_backend_whose_addresses_are_denied_is_warned_of(section: str, mode: str):
    found = warnings(REVERSE, IP, ROUTE, policy(f"mode: {mode}\n{section}: {{deny: [{{cidrs: [10.0.0.0/8]}}]}}"))
    if (section, mode) == ("destinations", "Report"):
        assert found == []
        return
    (warning,) = found
    entry = '{cidrs: ["10.0.0.0/8"]}'
    assert f"10.0.0.7 (denied by {entry} in {section}.deny of EgressPolicy default/policy)" in warning
    assert "listener web refuses what goes there (403). To allow it, remove or narrow its range in" in warning


METADATA = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: plain}
spec: {destination: {type: Ip, ip: {address: 169.254.169.254}, ports: [{number: 80, tls: {mode: None}}]}}
"""
KEY = "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {token: abcdefgh}\n"


def test_a_backend_at_cloud_metadata_is_told_unless_an_allowance_names_its_address():
    (warning,) = warnings(REVERSE, METADATA, ROUTE)
    assert "Denied is True (DestinationDenied): 169.254.169.254:80 is an address that policy does not allow" in warning
    assert "listener web refuses what goes there (403). To allow it, leave it closed" in warning
    assert not warnings(REVERSE, METADATA, ROUTE, policy("addresses: {allow: [{cidrs: [169.254.169.254/32]}]}"))
    behind = PLAIN + "  parent: {name: gate}\n"
    assert len(warnings(REVERSE, behind, METADATA.replace("plain", "gate"), ROUTE)) == 1


def injector(config: str) -> str:
    return f"  extensions:\n  - {{name: k, type: CredentialInjector, config: {{secretRef: {{name: key}}{config}}}}}\n"


@pytest.mark.parametrize("is_on_policy", [False, True])
def test_a_credential_that_is_never_sent_in_plain_text_is_told(is_on_policy: bool):
    """A backend that says `tls: {mode: None}` is served, and its credential never goes there."""
    if is_on_policy:
        sends = "extensions: [{name: k, type: CredentialInjector, config: {secretRef: {name: key}}}]"
        bearer, plain = [policy(sends, "Backend", "plain")], PLAIN
    else:
        bearer, plain = [], PLAIN + injector("")
    (warning,) = warnings(REVERSE, KEY, plain, ROUTE, *bearer)
    assert warning.startswith("parent gw: egressproxy.io/Denied is True (DestinationDenied): filter k of ")
    assert "sends nothing in plain text, and default/plain is not reached over TLS: listener web refuses" in warning
    assert "To allow it, add `tls` to the Backend, or `allowPlaintext: true` to the filter's config." in warning
    if not is_on_policy:
        assert not warnings(REVERSE, KEY, PLAIN + injector(", allowPlaintext: true"), ROUTE)
        secure = plain.replace("number: 80, tls: {mode: None}", "number: 443, tls: {mode: Simple}")
        assert not warnings(REVERSE, KEY, secure, ROUTE)


def test_a_credential_is_no_matter_of_streams():
    listening = REVERSE.replace("name: web, port: 8080, protocol: HTTP", "name: tcp, port: 8080, protocol: TCP")
    plain = PLAIN.replace("number: 80", "number: 80, protocol: TCP") + injector("")
    assert not warnings(listening, KEY, plain, ROUTE.replace("HTTPRoute", "TCPRoute").replace("io/v1", "io/v1alpha2"))
