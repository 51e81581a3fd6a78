"""What rules say of session persistence, as the data plane needs it."""

from __future__ import annotations

import pytest

from egressproxy.ir.route import HttpRuleIR, SessionIR
from tests.config.compile.kit import FORWARD, PLAIN, ROUTE, compiled, of_route, rule


def with_rule(fields: str) -> str:
    """ROUTE with more fields in its rule."""
    return ROUTE.replace("- backendRefs", f"- {fields}\n    backendRefs")


def one_rule(fields: str, *more: str) -> HttpRuleIR:
    return rule(compiled(FORWARD, PLAIN, with_rule(fields), *more))


def session(fields: str) -> SessionIR:
    found = one_rule(f"sessionPersistence: {{{fields}}}").session
    assert found is not None
    return found


def test_a_session_has_a_name_of_its_rule():
    first, again, other = (
        session(""),
        session("type: Cookie"),
        one_rule("name: other\n    sessionPersistence: {}").session,
    )
    assert other is not None
    assert first == again
    assert first.name.startswith("egress-session-")
    assert first.name != other.name
    assert first.scope == "default/route/0"
    assert other.scope == "default/route/other"


def test_a_session_is_kept_as_the_rule_says_it():
    found = session("sessionName: sid, absoluteTimeout: 1h, idleTimeout: 5m, cookieConfig: {lifetimeType: Permanent}")
    assert found == SessionIR("sid", "default/route/0", False, 3600.0, 300.0, True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("cookie: {name: sid}", SessionIR("sid", "default/route/0", cookie_path="/")),
        (
            "absoluteTimeout: 1h, cookie: {name: sid, path: /a, lifetimeType: Permanent}",
            SessionIR("sid", "default/route/0", False, 3600.0, 0.0, True, cookie_path="/a"),
        ),
        ("type: Header, header: {name: X-S}", SessionIR("X-S", "default/route/0", is_header=True)),
    ],
)
def test_a_session_of_today_s_form_is_kept_as_the_rule_says_it(fields: str, expected: SessionIR):
    assert session(fields) == expected


def test_a_cookie_of_today_s_form_has_a_name_of_its_rule_and_the_path_of_all():
    found = session("cookie: {}")
    assert found.name == session("").name
    assert found.cookie_path == "/"


@pytest.mark.parametrize("path", ["", "a", "/a;Domain=b", "/a b", "/a\\r"])
def test_a_path_that_no_cookie_can_have_is_replaced_and_status_says_so(path: str):
    made = compiled(FORWARD, PLAIN, with_rule(f'sessionPersistence: {{cookie: {{path: "{path}"}}}}'))
    found = rule(made).session
    assert found is not None
    assert found.cookie_path == "/"
    assert "cookie.path" in of_route(made, "Accepted")[2]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("type: Header, header: {name: Content-Length}", "header.name Content-Length is a field with another meaning"),
        ('sessionName: "a b"', "is no token"),
        ('sessionName: "a;b"', "is no token"),
        ("sessionName: Content-Length, type: Header", "another meaning"),
        ("sessionName: proxy-x, type: Header", "another meaning"),
    ],
)
def test_a_name_that_cannot_be_used_is_replaced_and_status_says_so(fields: str, why: str):
    made = compiled(FORWARD, PLAIN, with_rule(f"sessionPersistence: {{{fields}}}"))
    found = rule(made).session
    assert found is not None
    assert found.name.startswith("egress-session-")
    assert why in of_route(made, "Accepted")[2]


def test_with_a_session_backends_of_weight_0_stay():
    weightless = ROUTE.replace("name: plain", "name: plain, weight: 0")
    assert weightless != ROUTE
    made = compiled(FORWARD, PLAIN, weightless.replace("- backendRefs", "- sessionPersistence: {}\n    backendRefs"))
    (backend,) = rule(made).backends
    assert backend.backend is not None
    assert backend.weight == 0
