"""What a request costs where rules ask for headers, query parameters and expressions: in counts, not in time."""

import subprocess
import sys
from pathlib import Path

import pytest

from egressproxy.errors import BadRequest, Reason
from egressproxy.ir.route import HttpRouteIR, HttpRuleIR, MatchIR, MatchType, PathMatchType, ValueMatch
from egressproxy.model.fields import Fields
from egressproxy.model.work import at_once
from egressproxy.routing import conditions
from egressproxy.routing.conditions import MAX_PARAMETERS, WORK
from egressproxy.routing.patterns import Expression
from egressproxy.routing.table import HttpTable
from tests.support.builds import of_sources
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
REGEX = MatchType.REGEX


def table(*matches, hosts=("a.test",)):
    """One rule for each match; payloads are their places."""
    rules = tuple(HttpRuleIR(matches=(match,)) for match in matches)
    return at_once(HttpTable.building([(HttpRouteIR("n/r", hosts, rules), range(len(rules)))]))


def ask(made, target, *lines, host="a.test"):
    found = made.match(host, b"GET", target, Fields.of(lines))
    return found and found[0]


def refusal(made, target, *lines):
    with pytest.raises(BadRequest) as caught:
        ask(made, target, *lines)
    assert not caught.value.close
    return caught.value.status, caught.value.reason


def expression(text):
    return MatchIR(text, PathMatchType.REGEX)


class Counted(Fields):
    """Fields that count how often they are gone through."""

    __slots__ = ("passes",)

    def __init__(self, block):
        super().__init__(block)
        self.passes = 0

    def get_all(self, name):
        self.passes += 1
        return super().get_all(name)

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


def test_a_query_is_taken_apart_once_however_many_matches_ask_for_it(monkeypatch):
    made = table(*(MatchIR(query=(ValueMatch(f"p{n}", "1"), ValueMatch(f"q{n}", "2"))) for n in range(32)))
    decoded = []
    real = conditions._decoded
    monkeypatch.setattr(conditions, "_decoded", lambda text: decoded.append(text) or real(text))
    assert ask(made, b"/?" + b"&".join(b"x%d=1" % n for n in range(200))) is None
    assert len(decoded) == 400


def test_a_query_that_no_match_asks_for_is_not_taken_apart(monkeypatch):
    made = table(MatchIR("/a", query=(ValueMatch("p", "1"),)), MatchIR("/b"))
    monkeypatch.setattr(conditions, "_parameters", None)
    assert ask(made, b"/b?p=1" + b"&" * 8000) == 1


def test_more_query_parameters_than_a_match_looks_at_are_refused():
    made = table(MatchIR(query=(ValueMatch("p", "1"),)), MatchIR("/"))
    assert ask(made, b"/?p=1" + b"&x=1" * (MAX_PARAMETERS - 1)) == 0
    for target in (b"/?p=1" + b"&x=1" * MAX_PARAMETERS, b"/?" + b"&" * 8000, b"/?p=2" + b"&" * MAX_PARAMETERS + b"p=1"):
        assert refusal(made, target) == (414, Reason.TARGET_TOO_LONG)


@of_sources
@pytest.mark.parametrize("number", [2, 1024])
def test_fields_are_gone_through_a_few_times_however_many_names_are_asked_for(number):
    names = [f"x-{n}" for n in range(number)]
    made = table(*(MatchIR(headers=(ValueMatch(name, "1"),)) for name in names * 2))
    fields = Counted(b"".join(b"\r\nX-%d: 0" % n for n in range(128)))
    assert made.match("a.test", b"GET", b"/", fields) is None
    assert fields.passes <= 5


@pytest.mark.parametrize("number", [1, 40])
def test_values_of_several_lines_are_joined_whether_few_names_are_asked_for_or_many(number):
    made = table(*(MatchIR(headers=(ValueMatch(f"x-{n}", "1,2"),)) for n in range(number)))
    name = b"X-%d" % (number - 1)
    assert ask(made, b"/", (name, b"1"), (b"Other", b"3"), (name.lower(), b"2")) == number - 1
    assert ask(made, b"/", (name, b"1")) is None


def test_an_expression_is_tried_on_a_value_once(monkeypatch):
    same = ValueMatch("x-a", "v[0-9]+", REGEX)
    made = table(*(MatchIR(headers=(same, ValueMatch("x-b", f"{n}"))) for n in range(100)))
    tried = []
    real = Expression.matches
    monkeypatch.setattr(Expression, "matches", lambda self, value: tried.append(value) or real(self, value))
    assert ask(made, b"/", (b"x-a", b"v12"), (b"x-b", b"99")) == 99
    assert tried == [b"v12"]


@pytest.mark.parametrize("length", [50, 100, 2000])
def test_what_expressions_cost_one_request_is_bounded(monkeypatch, length):
    """By the longest value or the greatest number of expressions, and over all hostnames that are tried."""
    rules = [expression(f"/[a-z]*[a-z]{{{n % 30}}}x{n}") for n in range(2000)]
    made = at_once(
        HttpTable.building(
            (HttpRouteIR(host, (host,), tuple(HttpRuleIR(matches=(rule,)) for rule in rules)), range(len(rules)))
            for host in ("a.b.test", "*.b.test", "*.test")
        )
    )
    spent = []
    real = Expression.matches
    monkeypatch.setattr(Expression, "matches", lambda self, value: spent.append(self.work(value)) or real(self, value))
    with pytest.raises(BadRequest) as caught:
        ask(made, b"/" + b"a" * length, host="a.b.test")
    assert (caught.value.status, caught.value.reason) == (414, Reason.TARGET_TOO_LONG)
    assert 0 < sum(spent) <= WORK


def test_what_expressions_of_headers_cost_is_bounded_too():
    made = table(*(MatchIR(headers=(ValueMatch("x-a", f"[ab]*a[ab]{{300}}{n}", REGEX),)) for n in range(9)))
    assert ask(made, b"/", (b"x-a", b"a" * 100)) is None
    assert refusal(made, b"/", (b"x-a", b"a" * 2000)) == (431, Reason.HEAD_TOO_LARGE)


def test_a_value_that_cannot_match_is_not_refused_for_its_length():
    made = table(expression("/v[0-9]+/.*"), MatchIR("/"))
    assert ask(made, b"/w1/" + b"a" * 3000) == 1
    assert refusal(made, b"/v1/" + b"a" * 3000) == (414, Reason.TARGET_TOO_LONG)


def test_octets_that_are_no_text_are_matched():
    made = table(MatchIR(headers=(ValueMatch("x-a", "secret.*", REGEX),)), MatchIR("/"))
    assert ask(made, b"/", (b"x-a", b"secret\xff\xfe")) == 0
    made = table(MatchIR(query=(ValueMatch("q", "a[^b]c", REGEX),)), MatchIR("/"))
    assert ask(made, b"/?q=a%FFc") == 0


def test_another_spelling_of_a_field_satisfies_no_match():
    made = table(MatchIR(headers=(ValueMatch("x-tenant", "a"),)))
    assert ask(made, b"/", (b"X-Tenant", b"a")) == 0
    assert ask(made, b"/", (b"X_Tenant", b"a")) is None
    assert ask(made, b"/", (b"X-Tenant", b"b"), (b"X_Tenant", b"a")) is None


def test_re2_is_imported_with_the_first_expression_and_never_without():
    program = """
import sys
import egressproxy.processes.workers.process
from egressproxy.model.work import at_once
from egressproxy.routing.table import HttpTable
from egressproxy.ir.route import *
def build(*matches):
    at_once(HttpTable.building([(HttpRouteIR("n/r", (), (HttpRuleIR(matches=matches),)), [None])]))
build(MatchIR("/a"), MatchIR("/a", method="PUT", is_preflight=True), MatchIR(headers=(ValueMatch("a", "b"),)))
assert "re2" not in sys.modules
build(MatchIR("/a", PathMatchType.REGEX))
assert "re2" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
