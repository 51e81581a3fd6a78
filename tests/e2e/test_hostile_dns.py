"""What the owners of names and of addresses may write into DNS against us: the real process, a real name server."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

import pytest

from tests.e2e.test_dns_changes import origins
from tests.e2e.world import ALLOW_LOOPBACK, ask, client, get
from tests.support import manifests as m
from tests.support.dns import Rule
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import SharedGateway
from tests.support.waiting import wait_until

CNAME, PTR = 5, 12


def wire(*labels: bytes) -> bytes:
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


def reversed_wire(address: str) -> bytes:
    return wire(*(part.encode() for part in reversed(address.split("."))), b"in-addr", b"arpa")


def record(owner: bytes, kind: int, data: bytes) -> bytes:
    return owner + struct.pack("!HHIH", kind, 1, 60, len(data)) + data


def answer(question: bytes, records: Sequence[bytes], counted: int | None = None) -> Rule:
    """A message with these records, behind its id."""
    number = len(records) if counted is None else counted
    head = struct.pack("!HHHHH", 0x8180, 1, number, 0, 0)
    return Rule(raw=head + question + struct.pack("!HH", PTR, 1) + b"".join(records))


def pointers(address: str, names: Sequence[bytes]) -> Rule:
    question = reversed_wire(address)
    return answer(question, [record(b"\xc0\x0c", PTR, name) for name in names])


def policy(names: NameServer, **dns: object) -> m.Manifest:
    made = m.policy(["*.test"], cidrs=ALLOW_LOOPBACK)
    made["spec"]["dns"] = {"servers": [names.address], **dns}
    return made


LONGEST = wire(*[b"x" * 63] * 3, b"x" * 61)
LOOP = reversed_wire("127.0.0.5")


@pytest.mark.parametrize("check", ["Enforce", "Report"])
def test_whatever_stands_in_reverse_zones_denies_and_injects_nothing(shared: SharedGateway, check: str):
    port = free_port()
    hostile = {
        "2": pointers("127.0.0.2", [wire(b"n%d" % number, b"test") for number in range(1000)]),
        "3": pointers("127.0.0.3", [b"\xc0\x0c"] * 4_000),
        "4": pointers("127.0.0.4", [
            wire(b'x"\r\n{"reason": "ok"}\x1b[2J', b"test"), wire(b"a.test, h4", b"test"), wire(b"\0"), b"\0", LONGEST,
        ]),
        "5": answer(LOOP, [record(b"\xc0\x0c", CNAME, b"\xc0\x0c")]),
        "6": answer(reversed_wire("127.0.0.6"), [
            record(b"\xc0\x0c", CNAME, wire(b"a", b"test")), record(wire(b"a", b"test"), CNAME, wire(b"b", b"test")),
            record(wire(b"b", b"test"), CNAME, wire(b"a", b"test")),
        ]),
        "7": pointers("127.0.0.7", [wire(*[b"x" * 63] * 4)]),
        "8": answer(reversed_wire("127.0.0.8"), [record(b"\xc0\x0c", PTR, b"\xc0\x0c")], counted=60_000),
        "9": pointers("127.0.0.9", [wire(b"localhost"), wire(b"metadata", b"google", b"internal")]),
    }  # fmt: skip
    with NameServer({}) as names, origins() as (origin, accepted):
        for number, rule in hostile.items():
            names.zone[f"h{number}.test"] = Rule((f"127.0.0.{number}",))
            names.zone[f"{number}.0.0.127.in-addr.arpa"] = rule
        names.zone["good.test"] = Rule(("127.0.0.10",))
        names.zone["10.0.0.127.in-addr.arpa"] = Rule(("good.test",))
        objects = [m.gateway(m.forward_listener(port)), policy(names, reverseCheck=check)]
        with shared.serving(objects) as gateway:
            expected = dict.fromkeys(hostile, 200 if check == "Report" else 403)
            if check == "Enforce":  # where the names could not be read it is a failure, which is told apart
                expected |= dict.fromkeys("35678", 503)
            for number in hostile:
                with client(port) as sock:
                    status, body = ask(sock, get(f"h{number}.test", origin))
                assert status == expected[number], (number, body)
                assert b"\x1b" not in body
                assert b"n1.test" not in body
            with client(port) as sock:
                assert ask(sock, get("good.test", origin))[0] == 200
            if check == "Enforce":
                assert accepted == ["127.0.0.10"]
                told = gateway.wait_for_record(authority=f"h4.test:{origin}")
                assert set(told) == set(gateway.wait_for_record(authority=f"h2.test:{origin}"))
                assert r"x\034\013\010\123\034reason\034\058\032\034ok\034\125\027\0912j.test" in told["detail"]
                assert r"a\046test\044\032h4.test" in told["detail"]
                many = gateway.wait_for_record(authority=f"h2.test:{origin}")["detail"]
                assert many.count("test") == 8
                _, text = gateway.admin("/dns?name=h4.test")
                assert json.loads(text)["places"][0]["verdict"] == "refuse"
            else:
                counted = [("differs", 2), ("failed", 5), ("agrees", 1)]
                for result, least in counted:
                    wait_until(
                        lambda result=result, least=least: (
                            gateway.metric("egress_dns_reverse_checks_total", result=result) >= least
                        )
                    )
            exposition = gateway.admin("/metrics")[1]
            assert "\x1b" not in exposition
            assert "n1.test" not in exposition
            assert 'result="' in exposition
