"""Names that no allowed name may lead to."""

from __future__ import annotations

import pytest

from egressproxy.ir.policy import AddressesIR, NameDenial
from egressproxy.upstream.closed_names import ClosedNames, names_closed_by


@pytest.mark.parametrize(
    ("name", "port", "entry"),
    [
        ("evil.example", 443, "evil.example"),
        ("evil.example", 80, None),
        ("a.evil.example", 443, None),
        ("bad.example", 80, None),
        ("a.bad.example", 80, "*.bad.example"),
        ("b.a.bad.example", 80, "*.bad.example"),
        ("abad.example", 80, None),
        ("a.bad.example.test", 80, None),
    ],
)
def test_a_name_is_closed_as_a_client_that_names_it_is_denied(name: str, port: int, entry: str | None):
    closed = ClosedNames([NameDenial(("evil.example",), (443,), "ns/p"), NameDenial(("*.bad.example",), (), "ns/q")])
    found = closed.closing(("cdn.example", name), port)
    assert (found.entry if found is not None else None) == entry


def test_a_closing_says_which_name_to_the_log_alone():
    found = ClosedNames([NameDenial(("*.bad.example",), (443,), "ns/p")]).closing(("x.bad.example",), 443)
    assert found is not None
    assert found.policy == "ns/p"
    assert "bad.example" not in found.kind + found.remedy
    written = '{hostnames: ["*.bad.example"], ports: [443]}'
    assert found.detail == f"leads through x.bad.example, denied by {written} in destinations.deny of EgressPolicy ns/p"


def test_a_star_alone_is_every_name():
    closed = ClosedNames([NameDenial(("*",))])
    assert closed.closing(("a.example",), 1)
    assert not closed.closing((), 1)


def test_equal_rules_share_what_is_compiled_and_reported_entries_close_nothing():
    spec = AddressesIR(denied_names=(NameDenial(("a.example",)), NameDenial(("b.example",), reports=True)))
    assert names_closed_by(spec) is names_closed_by(AddressesIR(denied_names=spec.denied_names))
    closed, reported = names_closed_by(spec)
    assert [bool(each.closing((name,), 1)) for each in (closed, reported) for name in ("a.example", "b.example")] == [
        True, False, False, True,
    ]  # fmt: skip
