"""The generators against origins on loopback: what they count, and that they do not overlook an error."""

import socketserver
import threading
import time

import pytest

from benchmarks.generators import Generator, LoadError, python_generator, run_generator
from benchmarks.load.events import Lost, Reader, Stream
from benchmarks.processes import Child, free_ports
from benchmarks.world import REPOSITORY, TLS_NAME, World

LARGE = 300_000


class Handler(socketserver.BaseRequestHandler):
    """A proxy and its origin in one: CONNECT is accepted, then every GET is answered."""

    def handle(self):
        while data := self.request.recv(65536):
            line = data.partition(b"\r\n")[0]
            if line.startswith(b"CONNECT refused"):
                self.request.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            elif line.startswith(b"CONNECT"):
                self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                if b"closed" in line:
                    return
            else:
                size = LARGE if b"/large" in line else 1024
                self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64


@pytest.fixture
def proxy():
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield str(server.server_address[1])
        server.shutdown()
        thread.join()


def address(proxy, name="a.example:80"):
    return ("--port", proxy, "--authority", name)


@pytest.mark.parametrize("raw", [(), ("--raw",)])
def test_connections_are_counted(proxy, raw):
    outcome = run_generator(python_generator("tunnels", *address(proxy), "--seconds", "0.2", *raw), 1, "test")
    assert outcome.units >= 16
    assert outcome.p99_us >= outcome.p50_us > 0


@pytest.mark.parametrize("raw", [(), ("--raw",)])
def test_octets_are_counted(proxy, raw):
    command = python_generator("transfers", *address(proxy), "--seconds", "0.2", "--width", "2", *raw)
    outcome = run_generator(command, 1, "test")
    assert outcome.units % LARGE == 0
    assert outcome.units >= 2 * LARGE


@pytest.mark.parametrize("name", ["tunnels", "transfers"])
def test_a_refusal_is_an_error(proxy, name):
    command = python_generator(name, *address(proxy, "refused.example:80"), "--seconds", "0.1")
    with pytest.raises(LoadError):
        run_generator(command, 1, "test")


def test_a_tunnel_that_is_not_opened_is_an_error(proxy, tmp_path):
    World(tmp_path, None)  # writes certificates
    (tmp_path / "request").write_bytes(b"GET / HTTP/1.1\r\n\r\n")
    trust = ("--ca", str(tmp_path / "opened-ca.crt"), "--request", str(tmp_path / "request"))
    for authority in ("refused.example:80", "opaque.example:80"):
        command = python_generator("opened", *address(proxy, authority), *trust, "--seconds", "0.1", "--width", "1")
        with pytest.raises(LoadError):
            run_generator(command, 1, "test")


def test_tunnels_are_held_until_they_are_let_go(proxy):
    with Generator(python_generator("holding", *address(proxy), "5", "20"), "test") as holding:
        assert holding.answer() == {"open": 5}
        holding.go_on()
        assert holding.answer() == {"open": 25}


def test_a_tunnel_that_cannot_be_held_is_an_error(proxy):
    command = python_generator("holding", *address(proxy, "refused.example:80"), "5")
    with Generator(command, "test") as holding, pytest.raises(LoadError, match="after 0 tunnels: refused"):
        holding.answer()


def test_tunnels_that_were_closed_meanwhile_are_an_error(proxy):
    command = python_generator("holding", *address(proxy, "closed.example:80"), "5")
    with Generator(command, "test") as holding, pytest.raises(LoadError, match=r"of 5 tunnels, \d are open"):
        holding.answer()


class Origin:
    """The origin of event streams as a process."""

    def __init__(self, folder):
        self.world = World(folder, None)
        (self.port,) = free_ports(1)
        command = self.world._origin()
        command[command.index("--port") + 1] = str(self.port)
        self.child = Child("events", command, folder, None, {"PYTHONPATH": str(REPOSITORY)})
        self.child.wait_for((self.port,))

    def reader(self, *fields, streams=20):
        named = [word for field in fields for word in ("--field", field)]
        return python_generator(
            "events", "--port", str(self.port), "--host", TLS_NAME, "--streams", str(streams),
            "--direct", str(self.world.folder / "ca.crt"), *named,
        )  # fmt: skip


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    made = Origin(tmp_path_factory.mktemp("events"))
    yield made
    made.child.stop()


def test_every_stream_has_its_events_and_their_age_is_told(origin):
    edited = ("X-Gateway: bench", f"Authorization: Bearer {origin.world.token}")
    with Generator(origin.reader(*edited), "test") as reader:
        assert reader.answer() == {"open": 20}
        reader.go_on(0.4)
        outcome = reader.answer()
        assert outcome["units"] >= 20
        assert outcome["errors"] == 0
        assert 0 < outcome["p50_us"] <= outcome["p99_us"]


@pytest.mark.parametrize("fields", [(), ("X-Gateway: bench", "Authorization: Bearer another")])
def test_a_request_that_was_not_edited_gets_no_stream(origin, fields):
    with Generator(origin.reader(*fields), "test") as reader, pytest.raises(LoadError, match=r"refused|ended|broke"):
        reader.answer()


def event(number):
    return b'data: {"id":"x","n":%010d,"t":%020d,"choices":[]}\n\n' % (number, time.monotonic_ns())


@pytest.fixture
def reader():
    return Reader(1, b"", None, "")


def test_events_are_found_wherever_they_are_cut(reader):
    stream = Stream(None)
    octets = b"HTTP/1.1 200 OK\r\n\r\n55\r\n" + event(1) + b"\r\n55\r\n" + event(2) + b"\r\n"
    for at in range(0, len(octets), 7):
        reader._count(stream, octets[at : at + 7], time.monotonic_ns())
    assert (stream.number, len(reader.delays_ns)) == (2, 2)


def test_an_event_that_is_missing_is_an_error(reader):
    stream = Stream(None)
    reader._count(stream, event(1), 0)
    with pytest.raises(Lost, match="event 3 came after 1"):
        reader._count(stream, event(3), 0)


def test_a_stream_that_ends_is_an_error(reader):
    with pytest.raises(Lost, match="ended"):
        reader._count(Stream(None), b"", 0)
