"""The kit itself is proved against real clients of the protocols: dnspython, ssl, requests."""

from __future__ import annotations

import gc
import itertools
import json
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import dns.resolver
import pytest
import requests

from tests.gateway.kit import forward
from tests.support import net
from tests.support.conversation import conversation
from tests.support.leftovers import Leftovers
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.origins import basic
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]


def addresses(server: NameServer, name: str, *, tcp: bool) -> list[str]:
    resolver = dns.resolver.Resolver(configure=False)
    host, _, port = server.address.partition(":")
    resolver.nameservers, resolver.port = [host], int(port)
    return [record.to_text() for record in resolver.resolve(name, "A", tcp=tcp)]


@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
def test_names_are_answered_and_others_do_not_exist(tcp: bool):
    with NameServer({"a.test": ["127.0.0.2", "::1"]}) as server:
        assert addresses(server, "a.test", tcp=tcp) == ["127.0.0.2"]
        with pytest.raises(dns.resolver.NXDOMAIN):
            addresses(server, "none.test", tcp=tcp)
        assert server.asked("a.test") == 1


def test_the_certificate_is_good_for_its_names_and_for_no_other(tmp_path: Path):
    pki = Pki(tmp_path)
    with OriginServer([basic.routes()], pki.server_context("127.0.0.1")) as origin:
        url = f"https://{origin.address}:{origin.tls_port}/hello"
        with pytest.raises(requests.exceptions.SSLError, match=r"doesn't match|mismatch"):
            requests.get(url, verify=str(pki.ca_file), timeout=WAIT_S)


def test_the_origin_answers_and_records_what_came(tmp_path: Path):
    pki = Pki(tmp_path)
    with OriginServer([basic.routes()], pki.server_context("origin.test")) as origin:
        base = f"http://{origin.address}:{origin.plain_port}"
        assert requests.get(f"{base}/bytes/1000", timeout=WAIT_S).content == basic.pattern(1000)
        posted = requests.post(f"{base}/echo?a=b", data=b"some", headers={"X-Odd": "1"}, timeout=WAIT_S)
        assert posted.content == b"some"
        assert origin.requests("/echo")[0].target == "/echo?a=b"
        assert origin.requests("/echo")[0].get("x-odd") == ["1"]


def test_what_one_process_was_given_no_other_is_given(monkeypatch: pytest.MonkeyPatch):
    """The other way round it would be chance: here we look first where the other process has found its ports."""
    program = "from tests.support.net import free_port; print([free_port() for _ in range(100)], flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = set(json.loads(other.stdout.readline()))

        class TheirsFirst:
            @staticmethod
            def sample(starts: range, _count: int) -> list[int]:
                return sorted(starts, key=lambda start: theirs.isdisjoint(range(start, start + 64)))

        monkeypatch.setattr(net, "_chosen", TheirsFirst)
        ours = set(itertools.islice(net._own_ports(), 100))
        other.kill()
    assert len(theirs) == len(ours) == 100
    assert theirs.isdisjoint(ours)


def test_a_port_that_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy, free = taken.getsockname()[1], free_port()
        monkeypatch.setattr(net, "_ports", iter([busy, free]))
        assert net.free_port() == free


def test_leftovers_are_what_came_since_and_stayed():
    class Thing: ...

    before = Thing()
    left = Leftovers(Thing)
    after = Thing()
    talk = conversation(forward())
    assert left.of(talk) == {"Thing": 1}
    del after
    assert not left.of(talk)
    gc.disable()
    circle = Thing()
    circle.me = circle  # type: ignore[attr-defined]
    del circle
    assert left.of(talk) == {"Thing": 1}
    gc.enable()
    talk.close()
    assert before
