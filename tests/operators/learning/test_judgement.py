"""Judgement: what is learnt of what was seen, and why the rest is not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.operators.learning.kit import judged, line, often, outcome, seen


def test_what_is_asked_for_in_three_different_minutes_is_learnt():
    lines = [line("api.a.example", at) for at in (1, 2, 3)]
    retried = [line("api.b.example", 5 + second / 60) for second in range(40)]
    assert outcome(*lines, *retried) == {"api.a.example": "learnt", "api.b.example": "RARE"}
    assert outcome(*lines, at_least=4) == {"api.a.example": "RARE"}


def test_what_two_colleagues_use_is_learnt_for_a_third_one():
    lines = [*often("pypi.org", account="a"), *often("pypi.org", account="b"), line("pypi.org", 7, "c")]
    assert len(judged(*lines).learnt) == 3
    assert len(judged(*lines[12:]).learnt) == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"canary": "k1"}, "CANARY"),
        ({"reason": "canary_key"}, "CANARY"),
        ({"reason": "dns_nxdomain", "upstream": "-"}, "UNREACHED"),
        ({"reason": "filter_rejected"}, "DENIED"),
        ({"would_deny": ["destination_denied"]}, "DENIED"),
        ({"would_deny": ["destination_not_allowed"]}, "learnt"),
        ({"would_deny": ["destination_not_allowed", "request_rate"]}, "learnt"),
        ({"route": "agents/api"}, "ROUTED"),
        ({"route": "agents/api", "would_deny": ["destination_not_allowed"]}, "learnt"),
        ({"upstream": "169.254.169.254:80"}, "ADDRESS"),
        ({"upstream": "10.0.0.7:443"}, "ADDRESS"),
        ({"upstream": "[fd00::1]:443"}, "ADDRESS"),
        ({"port": 4444}, "PORT"),
    ],
    ids=str,
)
def test_a_line_that_says_it_by_itself(more: dict[str, Any], why: str):
    assert outcome(*often("api.a.example", **more)) == {"api.a.example": why}


@pytest.mark.parametrize(
    ("more", "detail"),
    [
        ({"reason": "destination_not_allowed"}, "destination_not_allowed: to learn it, let it pass in mode Report"),
        ({"reason": "filter_rejected"}, "filter_rejected"),
        ({"upstream": "127.0.0.1:443"}, "leads to an address of class loopback: allow it by an entry of your own"),
        ({"upstream": "10.0.0.7:443"}, "leads to an address of class private (--private learns it)"),
    ],
    ids=str,
)
def test_what_is_left_out_says_what_would_help(more: dict[str, Any], detail: str):
    assert [each.detail for each in judged(*often("api.a.example", **more)).left_out] == [detail]


@pytest.mark.parametrize(
    "host", ["192.0.2.7", "10.1.2.3", "[::1]", "[2001:db8::1]", "metadata.google.internal", "localhost"]
)
def test_addresses_and_names_of_addresses_are_left_out(host: str):
    assert set(outcome(*often(host)).values()) == {"ADDRESS"}


def test_what_options_open():
    assert outcome(*often("a.example", upstream="10.0.0.7:443"), allows_private=True) == {"a.example": "learnt"}
    assert outcome(*often("a.example", upstream="127.0.0.1:443"), allows_private=True) == {"a.example": "ADDRESS"}
    assert outcome(*often("a.example", route="a/b"), allows_routed=True) == {"a.example": "learnt"}
    assert outcome(*often("a.example", port=22), ports=frozenset({22})) == {"a.example": "learnt"}


def test_a_canary_on_one_port_or_name_leaves_out_the_domain():
    found = outcome(*often("a.river.net"), *often("a.river.net", port=80, canary="k1"), *often("b.river.net"))
    assert found == {"a.river.net": "CANARY", "b.river.net": "CANARY"}


def test_an_upload_is_unusual_also_of_two_clients_or_with_large_answers():
    def sent(account: str, answer: int) -> list[dict[str, Any]]:
        return [line("drop.net", 600 + at, account, bytes_in=50_000_000, bytes_out=answer) for at in range(3)]

    usual = often("api.example.com", 60, every=10)
    assert outcome(*usual, *sent("a", 100), *sent("b", 100))["drop.net"] == "UPLOAD"
    assert outcome(*usual, *sent("a", 60_000_000))["drop.net"] == "UPLOAD"
    broken = line("drop.net", 605, "a", bytes_in=50_000_000, bytes_out=0, reason="client_timeout")
    assert outcome(*usual, *[line("drop.net", 600 + at, "a") for at in range(3)], broken)["drop.net"] == "UPLOAD"


def test_one_address_of_a_closed_class_is_enough():
    lines = [*often("a.example", 3, upstream="127.0.0.1:443"), *often("a.example", upstream="10.0.0.7:443")]
    assert outcome(*reversed(lines), allows_private=True) == {"a.example": "ADDRESS"}


def test_one_request_of_an_accomplice_makes_no_host_usual():
    upload = [line("drop.example.net", 60 + at, bytes_in=5_000_000, bytes_out=100) for at in range(5)]
    found = judged(*often("api.example.com", 60, every=10), *upload, line("drop.example.net", 70, "other"))
    assert {each.why.name for each in found.left_out} == {"UPLOAD", "RARE"}


def test_names_of_a_burst_that_do_not_come_back_are_left_out():
    burst = [line(f"{name}.example", 60 + again) for name in "abcdefghij" for again in range(3)]
    ordinary = [*often("api.x.example", 24), *[line("job.y.example", 61 + at) for at in range(8)]]
    found = outcome(*burst, *ordinary)
    assert {found[f"{name}.example"] for name in "abcdefghij"} == {"BURST"}
    assert (found["api.x.example"], found["job.y.example"]) == ("learnt", "learnt")


def test_a_short_look_is_no_burst():
    """All that a command of five minutes does is new, and ends."""
    assert set(outcome(*(line(f"{n}.example", at) for n in "abcdefghijkl" for at in range(4))).values()) == {"learnt"}


def test_many_new_names_below_one_domain_are_a_burst_of_all_clients_together():
    lines = [line(f"{at}.t.example", 60 + again, f"sa{at}") for at in range(12) for again in range(4)]
    assert set(outcome(*lines, *often("api.x.example", 24)).values()) == {"BURST", "learnt"}


def test_the_generated_name_that_exists_is_left_out_with_those_that_do_not():
    draw = random.Random(5)
    names = ["".join(draw.choices("bcdfghjklmnpqrstvwxz", k=11)) + ".net" for _ in range(30)]
    tried = [line(name, 60 + at / 10, reason="dns_nxdomain", upstream="-") for at, name in enumerate(names)]
    found = outcome(*tried, *[line("qzxkvjwpfhg.net", 62 + 10 * at) for at in range(30)],
                    *[line("api.riverstone.net", 62 + 40 * at) for at in range(30)])  # fmt: skip
    assert (found["qzxkvjwpfhg.net"], found["api.riverstone.net"]) == ("TRIED", "learnt")
    habit = outcome(*tried, *[line("riverstone.net", 61 + 60 * at) for at in range(12)], *often("api.x.example"))
    assert habit["riverstone.net"] == "learnt"  # all day


def test_one_typing_error_beside_a_name_says_nothing_of_it():
    typed = [line(f"{n}x.api.example.net", 300 + at, reason="dns_nxdomain") for at, n in enumerate("abcdefghijkl")]
    wrong = [line("data.river.exampel.net", 60, reason="dns_nxdomain")]
    assert outcome(*typed, *wrong, *often("data.river.example.net"))["data.river.example.net"] == "learnt"


def test_random_labels_are_learnt_only_in_steady_use():
    bucket = "3f2504e04f8911d39a0c0305e82c3301.s3.example"
    assert outcome(*often(bucket, 12)) == {bucket: "learnt"}
    assert outcome(*often(bucket, 6)) == {bucket: "DATA"}


def test_a_rare_lookalike_is_left_out():
    lines = [*often("api.openai.com", 70, every=10), *often("api.openal.com", 6), *often("api.example.org", 6)]
    assert outcome(*lines) == {"api.openai.com": "learnt", "api.openal.com": "LOOKALIKE", "api.example.org": "learnt"}


def test_an_upload_is_left_out_unless_it_is_a_habit():
    usual = often("api.example.com", 60, every=10)
    upload = [line("drop.example.net", 60 + at, bytes_in=5_000_000, bytes_out=100) for at in range(5)]
    pieces = [line("drop.example.net", 60 + at, bytes_in=900_000, bytes_out=100) for at in range(12)]
    backup = often("backup.example.net", 10, bytes_in=50_000_000, bytes_out=900)
    assert outcome(*usual, *upload)["drop.example.net"] == "UPLOAD"
    assert outcome(*usual, *pieces)["drop.example.net"] == "UPLOAD"
    assert outcome(*usual, *upload, *often("drop.example.net", account="other"))["drop.example.net"] == "learnt"
    assert outcome(*usual, *backup)["backup.example.net"] == "learnt"


def test_memory_is_bounded_and_says_so():
    many = seen(*(line(f"{at}.d{at}.example", at) for at in range(5000)), *often("api.example", 80), most=500)
    assert len(many.records()) <= 500
    assert many.forgotten >= 4000
    assert any(each.host == "api.example" for each in many.records())


@pytest.mark.parametrize(
    "broken", [{}, {"time": "x"}, {"authority": "no port"}, {"authority": 7}, {"time": "0001-01-01T00:00:00Z"},
               {"gateway": None, "authority": None}],
)  # fmt: skip
def test_what_is_no_line_of_the_log_is_counted(broken: dict[str, Any]):
    found = seen()
    found.add_log({**line("a.example"), **broken} if broken else {})
    assert (found.unread, found.count) == (1, 0)


def test_paths_lose_what_may_be_a_secret():
    paths = [
        "/v1/chat/completions",
        "/v1/chat",
        "/bot12:ABCdef/send",
        "/services/T024BE7LD/B0/x",
        "/AKIAIOSFODNN7EXAMPLE",
    ]
    [record] = seen(*(line("a.example", at, method="POST", path=path) for at, path in enumerate(paths))).records()
    assert (record.methods, record.prefixes) == (("POST",), ["/"])
    [record] = seen(*(line("a.example", at, method="GET", path=f"/v1/{'x' * at}") for at in range(1, 20))).records()
    assert record.prefixes == ["/v1"]
