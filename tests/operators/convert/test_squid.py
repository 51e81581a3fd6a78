"""Squid's rules become policies that allow no more than Squid, and as much where they can say it."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from egressproxy.operators.convert import squid
from egressproxy.operators.convert.manifests import Converted, ConvertError
from egressproxy.operators.convert.squid import convert_squid
from tests.operators.convert.worlds import World

HEAD = """acl localnet src 10.0.0.0/8
acl good dstdomain -n .good.example api.other.example
acl ports port 80 443
"""


def converted(tmp_path: Path, rules: str, head: str = HEAD) -> Converted:
    file = tmp_path / "squid.conf"
    file.write_text(head + rules)
    return convert_squid(file)


def lists(found: Converted) -> list[tuple[str, list[str], list[str]]]:
    """Mode, allow and deny of each policy: hosts, and ports behind a colon."""
    return [
        (
            each.mode,
            *(
                [f"{host}{':' if of.ports else ''}{'+'.join(map(str, of.ports))}" for of in part for host in of.hosts]
                for part in (each.allow, each.deny)
            ),
        )
        for each in found.policies
    ]  # fmt: skip


GOOD = ["*.good.example", "good.example", "api.other.example"]
TABLE = {
    "suffix_and_name": ("http_access allow good\nhttp_access deny all", [("Enforce", GOOD, [])]),
    "ports": (
        "http_access deny !ports\nhttp_access allow good",
        [("Enforce", [f"{each}:80+443" for each in GOOD], [])],
    ),
    "nothing": ("", [("Enforce", [], [])]),
    "deny_before_allow": (
        "acl bad dstdomain -n bad.good.example\nhttp_access deny bad\nhttp_access allow good\nhttp_access deny all",
        [("Enforce", GOOD, ["bad.good.example"])],
    ),
    "deny_behind_allow": (
        "acl bad dstdomain -n .good.example\nhttp_access allow good\nhttp_access deny bad\nhttp_access deny all",
        [("Enforce", GOOD, [])],
    ),
    "negation": ("http_access deny !good\nhttp_access allow all", [("Enforce", GOOD, [])]),
    "block_list": (
        "acl bad dstdomain -n .bad.example\nhttp_access deny bad\nhttp_access allow all",
        [("Open", [], ["*.bad.example", "bad.example"])],
    ),
    "opposite_of_the_last": (
        "acl bad dstdomain -n x.bad.example\nhttp_access deny bad",
        [("Open", [], ["x.bad.example"])],
    ),
    "unknown_allow": ("acl noon time 12:00-13:00\nhttp_access allow noon\nhttp_access deny all", [("Enforce", [], [])]),
    "unknown_deny": ("acl noon time 12:00-13:00\nhttp_access deny noon\nhttp_access allow good", [("Enforce", [], [])]),
    "regex": (
        "acl re dstdom_regex -n (^|\\.)py\\.example$ ^a\\.example$ \\.b\\.example$\n"
        "http_access allow re\nhttp_access deny all",
        [("Enforce", ["*.b.example", "*.py.example", "py.example", "a.example"], [])],
    ),
    "any_of": (
        "acl both any-of good ports\nacl one all-of good ports\nhttp_access allow one",
        [("Enforce", [f"{each}:80+443" for each in GOOD], [])],
    ),
    "addresses": (
        "acl far dst 198.51.100.0/24\nhttp_access allow far\nhttp_access deny all",
        [("Enforce", ["198.51.100.0/24"], [])],
    ),
    "plain_alone": (
        "http_access deny CONNECT\nhttp_access allow good\nhttp_access deny all",
        [("Enforce", [f"{each}:80" for each in GOOD], [])],
    ),
    "some_methods": (
        "acl reads method GET HEAD\nhttp_access allow reads good\nhttp_access deny all",
        [("Enforce", [], [])],
    ),
    "terminated": (
        "acl names ssl::server_name .good.example\nhttp_access allow localnet\nhttp_access allow all\n"
        "ssl_bump peek all\nssl_bump splice names\nssl_bump terminate all",
        [("Enforce", ["*.good.example", "good.example"], [])],
    ),
    "opened": (
        "acl posts method POST\nhttp_access deny posts\nhttp_access allow good\n"
        "http_access deny all\nssl_bump bump all",
        [("Enforce", [], [])],
    ),
    "every_list": ("http_access allow good\nhttp_reply_access deny all", [("Enforce", [], [])]),
}


@pytest.mark.parametrize("name", TABLE)
def test_rules_become_entries(tmp_path: Path, name: str):
    rules, expected = TABLE[name]
    found = converted(tmp_path, rules)
    assert [(mode, sorted(allow), sorted(deny)) for mode, allow, deny in lists(found)] == [
        (mode, sorted(allow), sorted(deny)) for mode, allow, deny in expected
    ]
    World(found, tmp_path)


LEFT_OUT = {
    "overlap": (
        "acl net src 10.0.0.0/8 10.1.0.0/16\nhttp_access allow net good",
        ":4 acl net: 10.1.0.0/16 is a part of 10.0.0.0/8, and Squid ignores one of the two",
    ),
    "rewriter": ("url_rewrite_program /bin/guard", ":4 url_rewrite_program: filters change requests"),
    "time": (
        "acl noon time 12:00-13:00\nhttp_access allow noon",
        ":5 http_access allow noon: not allowed: acl noon (time, line 4)",
    ),
    "shadowed": (
        "acl bad dstdomain -n .good.example\nacl one dstdomain -n a.good.example\n"
        "http_access allow one\nhttp_access deny bad\nhttp_access allow all",
        ":6 http_access allow one: a.good.example on every port: an entry of deny",
    ),
    "ports_of_all": ("http_access allow ports", "every other host on ports 80, 443 is not allowed"),
    "reverse_names": (
        "acl bad dstdomain .bad.example\nhttp_access deny bad\nhttp_access allow all",
        "write the option -n",
    ),
    "value": (
        "acl bad dstdomain *.x.example\nhttp_access allow bad",
        ":4 acl bad: the value *.x.example of type dstdomain becomes no entry",
    ),
    "file": ('acl bad dstdomain "none.txt"\nhttp_access deny bad\nhttp_access allow good', "none.txt cannot be read"),
    "directive": ("ssl_bump bump all", ":4 ssl_bump: name the tunnels to look into in `intercept`"),
    "forwarded": ("follow_x_forwarded_for allow all\nhttp_access allow localnet good", "X-Forwarded-For is not read"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_told_with_its_line(tmp_path: Path, name: str):
    rules, expected = LEFT_OUT[name]
    found = converted(tmp_path, rules)
    assert expected in "\n".join(found.told())
    assert f"# {found.told()[0]}" in found.written("egress")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("http_access allow nobody", "there is no acl nobody"),
        ("include none.conf", "include none.conf: there is no such file"),
        ("acl good src 10.0.0.1", "has type dstdomain"), ("if true", "conditions and macros"),
        ("http_access permit good", "write http_access allow or deny"), ("include squid.conf", "includes itself"),
    ],
    ids=["acl", "include", "type", "if", "word", "loop"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(tmp_path: Path, rules: str, message: str):
    with pytest.raises(ConvertError, match=message):
        converted(tmp_path, rules)


def test_lists_and_includes_are_read_and_named(tmp_path: Path):
    (tmp_path / "more.conf").write_text('acl listed dstdomain -n "names.txt"\nhttp_access allow \\\n  listed\n')
    (tmp_path / "names.txt").write_text("# ours\n.one.example\n\nno\n")
    text = converted(tmp_path, "include mor*.conf\nhttp_port 3130\n").written("egress")
    assert 'hostnames: ["no", "*.one.example", one.example]' in text
    assert f"# {tmp_path}/more.conf:1 acl listed (names.txt); allowed by line 2\n" in text
    assert "port: 3130" in text


def test_passwords_are_asked_for_where_squid_does(tmp_path: Path):
    found = converted(tmp_path, "acl users proxy_auth REQUIRED\nhttp_access deny !users\nhttp_access allow good\n")
    assert lists(found) == [("Enforce", GOOD, [])] or sorted(lists(found)[0][1]) == sorted(GOOD)
    assert "identity: {basic: {secretRef: {name: users}}}" in found.written("egress")


NAMES = ("a.x.example", "x.example", "b.a.x.example", "y.example", "z.y.example", "other.example")
ADDRESSES = {name: f"198.51.100.{at * 16}" for at, name in enumerate(NAMES)} | {"203.0.113.9": "203.0.113.9"}
VALUES = {
    "dstdomain -n": (".x.example", "a.x.example", "y.example", ".y.example", "203.0.113.9"),
    "port": ("80", "443", "400-500", "81-8080"),
    "src": ("10.0.0.0/8", "10.1.0.0/16", "192.0.2.1"),
    "dst": ("198.51.100.0/27", "203.0.113.0/24", "198.51.100.0/25"),
    "method": ("CONNECT", "GET", "POST"),
    "time": ("12:00-13:00",),
}


def decided_by_squid(acls: dict[str, Any], rules: list[Any], request: dict[str, Any], noon: bool) -> bool:
    """Squid's own order, as its documentation says it."""

    def matches(name: str) -> bool:
        kind, values = acls[name]
        if kind == "dstdomain -n":
            host = request["host"]
            return any(host == each.lstrip(".") or (each[0] == "." and host.endswith(each)) for each in values)
        if kind == "port":
            return any(int(each.split("-")[0]) <= request["port"] <= int(each.split("-")[-1]) for each in values)
        if kind in ("src", "dst"):
            return any(ip_address(request[kind]) in ip_network(each) for each in values)
        return request["method"] in values if kind == "method" else noon

    for allows, terms in rules:
        if all(matches(name) != negated for negated, name in terms):
            return allows
    return not rules[-1][0] if rules else False


def play(seed: int, folder: Path) -> tuple[int, int]:
    """How many of some requests Squid and the conversion allow; each that the conversion allows Squid allows, too."""
    random = Random(seed)
    acls = {}
    for at in range(random.randint(2, 6)):
        kind = random.choice([*VALUES, "dstdomain -n", "port"])
        acls[f"a{at}"] = (kind, random.sample(VALUES[kind], random.randint(1, min(2, len(VALUES[kind])))))
    rules = []
    for _ in range(random.randint(1, 6)):
        chosen = random.sample(sorted(acls), random.randint(1, min(3, len(acls))))
        rules.append((random.random() < 0.55, [(random.random() < 0.25, name) for name in chosen]))
    lines = [f"acl {name} {kind} {' '.join(values)}" for name, (kind, values) in acls.items()]
    for allows, terms in rules:
        names = " ".join("!" * negated + name for negated, name in terms)
        lines.append(f"http_access {'allow' if allows else 'deny'} {names}")
    found = converted(folder, "\n".join(lines), "")
    world = World(found, folder)
    theirs = ours = 0
    for _ in range(60):
        host = random.choice(list(ADDRESSES))
        port, source = (
            random.choice((80, 443, 8080, 25)),
            random.choice(("10.0.0.1", "10.1.0.1", "192.0.2.1", "192.0.2.2")),
        )
        request = {"host": host, "port": port, "src": source, "dst": ADDRESSES[host]}
        reached = any(
            all(
                decided_by_squid(acls, rules, {**request, "method": method}, noon)
                for method in methods
                for noon in (True, False)
            )
            for methods in [("CONNECT",), *([("GET", "POST", "PUT")] if port == 80 else [])]
        )  # fmt: skip
        account = world.account(source)
        got = world.allows(account, "GET" if port == 80 else "CONNECT", host, port, ADDRESSES[host])
        got |= world.allows(account, "GET", host, port, ADDRESSES[host])
        assert reached or not got, f"seed {seed}: {request} as {account}\n" + "\n".join(lines) + "\n" + world.text
        assert got or not reached or found.left_out, (
            f"seed {seed}: {request} is lost, and nobody says it\n" + "\n".join(lines) + world.text
        )
        theirs, ours = theirs + reached, ours + got
    return theirs, ours


def test_no_request_passes_that_squid_denies(tmp_path: Path):
    counts = [play(seed, tmp_path) for seed in range(24)]
    theirs, ours = (sum(each) for each in zip(*counts, strict=True))
    assert theirs > 150
    assert ours > theirs / 3


@pytest.mark.parametrize(
    ("lines", "listener", "told"),
    [
        ("http_port 8080", (8080, ""), []),
        ("http_port 10.200.200.1:3128\nhttp_port 3129", (3128, "10.200.200.1"), ["http_port 3129"]),
        ("http_port 3128 intercept\nhttp_port [::1]:3127", (3127, "::1"), ["http_port 3128 intercept"]),
        ("http_port proxy.lan:8080", (3128, ""), ["http_port proxy.lan:8080"]),
        ("http_port 1 accel\nhttps_port 2 cert=x", (3128, ""), ["http_port 1 accel", "https_port 2 cert=x"]),
    ],
    ids=["port", "address", "intercept", "name", "two"],
)
def test_one_listener_is_written_and_the_others_are_told(
    lines: str, listener: tuple[int, str], told: list[str], tmp_path: Path
):
    found = converted(tmp_path, f"{lines}\nhttp_access allow good")
    assert (found.port, found.address) == listener
    assert [each.origin.text for each in found.left_out] == told
    (spec,) = [each["spec"] for each in yaml.safe_load_all(found.written("egress")) if each["kind"] == "Gateway"]
    assert [each["value"] for each in spec.get("addresses", [])] == [each for each in [listener[1]] if each]


def test_each_rule_of_clients_that_may_the_same_is_told(tmp_path: Path):
    rules = """acl one src 10.1.0.0/16
acl two src 10.2.0.0/16
http_access deny !ports
http_access allow one
http_access allow two
http_access deny all"""
    told = [each.origin.text for each in converted(tmp_path, rules).left_out]
    assert told == ["http_access allow one", "http_access allow two"]


def test_hosts_are_told_apart_once_for_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A list of many clients and hosts would take minutes."""
    asked: list[Any] = []
    matches = squid.matches
    monkeypatch.setattr(squid, "matches", lambda *rest: asked.append(rest[1]) or matches(*rest))
    clients = "".join(f"acl s{n} src 10.{n}.0.0/16\nhttp_access allow s{n} names\n" for n in range(9))
    names = " ".join(f"h{number}.example" for number in range(99))
    converted(tmp_path, f"http_port 3128\nacl names dstdomain {names}\n{clients}http_access deny all\n", "")
    assert asked.count("h98.example") == 1


def test_rules_of_other_clients_are_left_out_once_for_all_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    truth = squid._Squid.truth
    monkeypatch.setattr(squid._Squid, "truth", lambda *given: asked.append(given[1]) or truth(*given))
    acls = "".join(f"acl s{n} src 10.{n}.0.0/16\nacl d{n} dstdomain h{n}.example\n" for n in range(9))
    rules = "".join(f"http_access allow s{n} d{n}\n" for n in range(9))
    converted(tmp_path, f"http_port 3128\n{acls}{rules}http_access deny all\n", "")
    assert asked.count((False, "s8")) < 200  # 952 of ten clients, each with all hosts and ports
