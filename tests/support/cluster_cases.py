"""A case for each kind that a gateway reads of a cluster (cluster_cases.yaml): what a client gets while an object of it
is right, another one, broken, and gone.

Every case has a host, or a port, of its own, so that all can be in force at once.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.world import Origin, read_message
from tests.support.cluster_access import ClusterAccess, Manifest
from tests.support.http2 import Http2Server
from tests.support.http2_client import Http2Client, head
from tests.support.load_process import LoadProcess
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.waiting import WAIT_S, wait_until

PORTS = ("HTTP", "LABELLED", "TLS", "TCP", "HTTPS", "CLASS", "GATEWAY", "SET", "KNOWN")
STATES = ("good", "changed", "broken", "unreadable")
#: The source address of a client, whose Pod a policy asks for.
POD = "127.0.0.7"
#: What the objects are in.
NAMESPACES = ("team", "far")
#: The host of what is asked for all the time (tests.support.load).
STEADY = "origin.egress.test"

_TEXT = yaml.safe_load((Path(__file__).parent / "cluster_cases.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Case:
    """`states` has the object in each state; `gets` what a client gets in it, and in `absent`."""

    label: str
    states: Mapping[str, Manifest]
    given: tuple[Manifest, ...]
    gets: Mapping[str, str]
    says: str
    about: Manifest
    asks: str

    @property
    def object(self) -> Manifest:
        return self.states["good"]


class World:
    """The origins of the cases, and what clients get of a gateway that has their manifests."""

    def __init__(self, values: Mapping[str, Any], pki: Pki) -> None:
        self.ports = {name: free_port() for name in PORTS}
        one, two = pki.issue("one.test", cn="one"), pki.issue("one.test", cn="two")
        self._pki = pki
        self._values = {
            **values, **self.ports, "CA": pki.ca_pem, "CA2": Pki().ca_pem,
            "CRT": _packed(chain(one).encode()), "KEY": _packed(one.private_key_pem.bytes()),
            "CRT2": _packed(chain(two).encode()), "KEY2": _packed(two.private_key_pem.bytes()),
        }  # fmt: skip

    @cached_property
    def base(self) -> list[Manifest]:
        """What is there all the time; the first of it is the Gateway."""
        made: list[Manifest] = self._filled(_TEXT["base"], "steady")
        return made

    @cached_property
    def cases(self) -> list[Case]:
        return [self._case(each) for each in _TEXT["cases"]]

    def _case(self, text: Manifest) -> Case:
        group, _, version = text["head"]["apiVersion"].rpartition("/")
        label = "-".join(filter(None, (text["head"]["kind"].lower(), group.partition(".")[0], version)))
        text = self._filled(text, label)
        first = text["head"]
        states = {
            state: {**first, **text[state], "metadata": {**first["metadata"], **text[state].get("metadata", {})}}
            for state in STATES
            if state in text
        }
        given = tuple(text.get("given", ()))
        return Case(
            label, states, given, text["gets"], text.get("says", ""), text.get("about", first), text.get("asks", "HTTP")
        )

    def _filled(self, value: Any, label: str) -> Any:
        if isinstance(value, dict):
            return {name: self._filled(part, label) for name, part in value.items()}
        if isinstance(value, list):
            return [self._filled(part, label) for part in value]
        if isinstance(value, str) and value.startswith("$"):
            return {**self._values, "HOST": f"{label}.test", "CASE": label}[value[1:]]
        return value

    # --- clients ------------------------------------------------------------------------------------------------
    def ask(self, case: Case, address: str = "127.0.0.1") -> str:
        """What a client gets at this address: `200 a`, `404`, `grpc 14`, `cert one`, `closed`."""
        host = f"{case.label}.test"
        try:
            if case.asks == "grpc":
                return self._call(address, host)
            if case.asks in ("TLS", "HTTPS"):
                return self._shown((address, self.ports[case.asks]), host)
            return self._get(address, self.ports[case.asks], host, POD if case.asks == "KNOWN" else "127.0.0.1")
        except (OSError, EOFError, http.client.HTTPException):
            return "closed"

    @staticmethod
    def _get(address: str, port: int, host: str, source: str) -> str:
        connection = http.client.HTTPConnection(address, port, timeout=WAIT_S, source_address=(source, 0))
        try:
            connection.request("GET", "/", headers={"Host": host})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        return f"200 {text}" if answer.status == 200 else str(answer.status)

    def _call(self, address: str, host: str) -> str:
        client = Http2Client()
        fields = head(b"POST", b"/some.Service/Call", host.encode())
        fields += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
        stream = client.request(fields, b"\0\0\0\0\0")
        with socket.create_connection((address, self.ports["HTTP"]), WAIT_S) as sock:
            while not client.of(stream).is_whole:
                sock.sendall(client.outgoing())
                piece = sock.recv(65536)
                if not piece:
                    raise EOFError
                client.take(piece)
        answer = client.of(stream)
        return f"grpc {dict(answer.trailers or answer.fields)[b'grpc-status'].decode()}"

    def _shown(self, place: tuple[str, int], name: str) -> str:
        """The name in the certificate that is shown."""
        context = self._pki.client_context()
        context.check_hostname = False
        with (
            socket.create_connection(place, WAIT_S) as sock,
            context.wrap_socket(sock, server_hostname=name) as tls,
        ):
            subject = dict(part[0] for part in (tls.getpeercert() or {})["subject"])
        return f"cert {subject['commonName']}"


@contextmanager
def cluster_world(steady: int = 1) -> Iterator[World]:
    """The world; `steady` is the port of the origin of `STEADY`."""
    pki = Pki()
    secure = pki.issue("secure.test", cn="secure")
    context = pki.server_context("secure.test")
    secure.configure_cert(context)
    with ExitStack() as stack:
        enter = stack.enter_context
        dns = enter(NameServer({"*": ["127.0.0.1"]}))
        a, b = (enter(Origin(lambda sock, name=name: _named(sock, name))) for name in "ab")
        origins = {
            "A": a, "B": b, "S": enter(Origin(lambda sock: _named(sock, "secure"), context)),
            "H": enter(Origin(_calls)), "J": enter(Origin(lambda sock: _answer(sock, json.dumps({"action": "allow"})))),
        }  # fmt: skip
        values = {name: each.port for name, each in origins.items()}
        yield World({**values, "DNS": dns.address, "STEADY": steady}, pki)


def _named(sock: socket.socket, name: str) -> None:
    while True:
        lines = read_message(sock)[0].decode().split("\r\n")
        marks = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("x-mark:")]
        _say(sock, " ".join([name, *marks]))


def _answer(sock: socket.socket, text: str) -> None:
    while True:
        read_message(sock)
        _say(sock, text)


def _say(sock: socket.socket, text: str) -> None:
    sock.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())


def _calls(sock: socket.socket) -> None:
    """A server of gRPC that answers every call with nothing."""
    server = Http2Server()
    answered: set[int] = set()
    while True:
        sock.sendall(server.outgoing())
        piece = sock.recv(65536)
        if not piece:
            return
        server.take(piece)
        for stream, call in server.calls.items():
            if call.is_whole and stream not in answered:
                answered.add(stream)
                server.answer(stream, b"")


def _packed(value: bytes) -> str:
    return base64.b64encode(value).decode()


# --- what happens to objects ----------------------------------------------------------------------------------------
#: What half of the objects are while the others are something else: what is broken takes no other with it.
ROUNDS = (
    ("absent", "absent"), ("good", "good"), ("changed", "broken"), ("broken", "changed"), ("unreadable", "good"),
    ("good", "unreadable"), ("absent", "good"), ("good", "absent"),
)  # fmt: skip


def put_base(api: ClusterAccess, world: World, cases: Iterable[Case]) -> None:
    """Write everything but the objects of the cases."""
    for name in NAMESPACES:
        api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for each in (*world.base, *(given for case in cases for given in case.given)):
        api.put(each)


def become(api: ClusterAccess, case: Case, state: str) -> None:
    """Have the object of a case in this state."""
    if state == "absent":
        api.delete(case.object)
    else:
        api.put(case.states[state])


def play(api: ClusterAccess, world: World, cases: list[Case], *, can_delete: Callable[[Case], bool]) -> None:
    """Have every object in every state, and see what clients get and what status says."""
    for number, states in enumerate(ROUNDS):
        expected: list[tuple[Case, str]] = []
        for place, case in enumerate(cases):
            state = states[place % 2]
            if state == "absent" and not can_delete(case):
                state = "broken"
            if state != "unreadable" or state in case.states:
                become(api, case, state)
                expected.append((case, state))
        _all_are(number, world, expected)
        for case, state in expected:
            if state == "broken" and case.says:
                wait_until(
                    lambda case=case: case.says in api.conditions(case.about),  # type: ignore[misc]
                    f"{case.label}: {case.says} is not said",
                )
    for case, state in expected:
        if state == "good":
            wait_until(
                lambda case=case: not {case.says} & api.conditions(case.about),  # type: ignore[misc]
                f"{case.label}: {case.says} is said still",
            )


def _all_are(number: int, world: World, expected: list[tuple[Case, str]]) -> None:
    """Return once clients get what they have to, all at the same time."""
    wrong: list[str] = []

    def is_right() -> bool:
        wrong.clear()
        for case, state in expected:
            if (got := world.ask(case)) != case.gets[state]:
                wrong.append(f"{case.label} {state}: {got} and not {case.gets[state]}")
        return not wrong

    try:
        wait_until(is_right)
    except AssertionError:
        raise AssertionError(f"round {number}: {wrong}") from None


class SteadyLoad:
    """Requests for `STEADY`, all the time (tests.support.load), and their origin."""

    def __init__(self, origin: LoadProcess) -> None:
        self.origin_port = origin.origin_port
        self.answered = 0

    @contextmanager
    def on(self, world: World, address: str = "127.0.0.1") -> Iterator[None]:
        """Ask within the block; none of the requests may be lost."""
        process = LoadProcess("tests.support.load")
        try:
            process.begin(targets=[(address, world.ports["HTTP"], "")], connections=2, requests=1)
            yield
            report = process.finish()
        finally:
            process.stop()
        assert report["lost"] == 0, report
        self.answered += report["answered"]


@contextmanager
def under_load() -> Iterator[SteadyLoad]:
    origin = LoadProcess("tests.support.load")
    try:
        yield SteadyLoad(origin)
    finally:
        origin.stop()
