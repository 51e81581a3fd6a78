"""Real clients that speak SOCKS5: curl, git, and OpenSSH behind nc."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from tests.clients.test_identity import PASSWORD
from tests.clients.world import DENIED, DOWN, ORIGIN, Ended, Require, Way, World
from tests.e2e.world import ALLOW_LOOPBACK
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.origins.basic import GREETING
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

SHELL = "shell.egress.test"


def curl(world: World, url: str, *options: str) -> Ended:
    command = ["curl", "--silent", "--show-error", "--fail", "--max-time", "20", *options, url]
    return world.run(command, Way.BASE)


@pytest.mark.parametrize("is_tls", [True, False])
def test_curl_leaves_names_to_the_gateway(world: World, require: Require, is_tls: bool):
    require("curl")
    since = world.gateway.mark()
    url = world.origin.url(ORIGIN, "/", tls=is_tls)
    ended = curl(world, url, "--proxy", f"socks5h://127.0.0.1:{world.socks_port}")
    assert (ended.status, GREETING in ended.output) == (0, True), ended.output
    record = world.gateway.wait_for_record(since=since, listener="socks", reason="-")
    port = world.origin.tls_port if is_tls else world.origin.plain_port
    assert (record["kind"], record["authority"]) == ("tunnel", f"{ORIGIN}:{port}")


def test_curl_that_resolves_by_itself_is_judged_by_the_address(world: World, require: Require):
    """`socks5://` in place of `socks5h://`: no policy of names can allow what it asks for."""
    require("curl")
    since = world.gateway.mark()
    where = f"{ORIGIN}:{world.origin.tls_port}:127.0.0.1"
    proxy = f"socks5://127.0.0.1:{world.socks_port}"
    ended = curl(world, world.origin.url(ORIGIN, "/", tls=True), "--resolve", where, "--proxy", proxy)
    assert ended.status == 97, ended.output  # CURLE_PROXY
    record = world.gateway.wait_for_record(since=since, listener="socks", reason="destination_not_allowed")
    assert record["authority"] == f"127.0.0.1:{world.origin.tls_port}"


@pytest.mark.parametrize(("host", "code"), [(DENIED, "(2)"), (DOWN, "(5)"), ("nowhere.egress.test", "(2)")])
def test_curl_shows_why_it_is_refused(world: World, require: Require, host: str, code: str):
    require("curl")
    url = world.origin.url(host, "/", tls=True)
    ended = curl(world, url, "--proxy", f"socks5h://127.0.0.1:{world.socks_port}")
    assert ended.status == 97, ended.output
    assert f"Can't complete SOCKS5 connection to {host}. {code}" in ended.output


def test_curl_may_show_a_password_that_nobody_asks_for(world: World, require: Require):
    require("curl")
    proxy = f"socks5h://robot:word@127.0.0.1:{world.socks_port}"
    ended = curl(world, world.origin.url(ORIGIN, "/", tls=True), "--proxy", proxy)
    assert ended.status == 0, ended.output


def test_git_clones(world: World, require: Require, tmp_path: Path):
    require("git")
    proxy = f"http.proxy=socks5h://127.0.0.1:{world.socks_port}"
    url = world.origin.url(ORIGIN, "/git/project.git", tls=True)
    ended = world.run(["git", "-c", proxy, "clone", "--quiet", url, str(tmp_path / "clone")], Way.BASE)
    assert ended.status == 0, ended.output
    assert (tmp_path / "clone" / ".git").is_dir()


# --- who asks ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("password", "reason"), [(PASSWORD, "-"), ("wrong", "credentials_refused"), ("", "none")])
def test_curl_shows_who_it_is(world: World, require: Require, tmp_path: Path, password: str, reason: str):
    """`none`: it offers no password at all, and is not let on."""
    require("curl")
    port = free_port()
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    objects = [
        m.gateway({"name": "socks", "port": port, "protocol": "egressproxy.io/socks5"}),
        m.policy(
            [ORIGIN], dns=world.dns.address, cidrs=ALLOW_LOOPBACK, identity={"basic": {"secretRef": {"name": "users"}}}
        ),
        m.secret("users", {"team.robot": hashed}),
    ]
    with GatewayProcess(tmp_path / "gateway", objects) as gateway:
        shown = f"team.robot:{password}@" if password else ""
        url = world.origin.url(ORIGIN, "/", tls=True)
        ended = curl(world, url, "--proxy", f"socks5h://{shown}127.0.0.1:{port}")
        if reason == "-":
            assert GREETING in ended.output
            record = gateway.wait_for_record(reason="-")
            assert (record["namespace"], record["service_account"]) == ("team", "robot")
        elif reason == "none":
            assert ended.status == 97
            assert "No authentication method was acceptable" in ended.output
            gateway.wait_for_record(reason="credentials_required", status=407)
        else:
            assert f"connection to {ORIGIN}. (2)" in ended.output
            record = gateway.wait_for_record(reason=reason, status=407)
            assert "wrong" not in str({key: record[key] for key in record if key != "detail"})


# --- OpenSSH ------------------------------------------------------------------------------------------------------
class SshServer:
    """sshd on loopback, with a key of its own; it lets in the key `client` of its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        for name in ("host", "client"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True, timeout=WAIT_S)
        (folder / "authorized").write_bytes((folder / "client.pub").read_bytes())
        written = f"""
            Port {self.port}
            ListenAddress 127.0.0.1
            HostKey {folder}/host
            PidFile none
            AuthorizedKeysFile {folder}/authorized
            StrictModes no
            UsePAM no
            PasswordAuthentication no
        """
        (folder / "config").write_text("\n".join(line.strip() for line in written.splitlines()))
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it for privilege separation
        program = shutil.which("sshd") or "/usr/sbin/sshd"
        self._process = subprocess.Popen(
            [program, "-D", "-e", "-f", str(folder / "config")], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if b"Server listening" in line:
                break
        else:
            raise RuntimeError("sshd did not start")

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=WAIT_S)


@pytest.fixture
def shell(tmp_path: Path, require: Require) -> Iterator[SshServer]:
    for program in ("ssh", "ssh-keygen", "nc"):
        require(program)
    if not Path("/usr/sbin/sshd").exists():
        require("sshd")
    server = SshServer(tmp_path)
    yield server
    server.stop()


@pytest.mark.parametrize("way", ["5", "connect"])
def test_openssh_goes_through_nc(shell: SshServer, way: str):
    """As `ProxyCommand nc -X 5 -x GATEWAY:1080 %h %p` of ssh_config, and the same with a CONNECT."""
    dns = NameServer({SHELL: ["127.0.0.1"]}).start()
    socks_port, forward_port = free_port(), free_port()
    listeners = [
        {"name": "socks", "port": socks_port, "protocol": "egressproxy.io/socks5"},
        m.forward_listener(forward_port),
    ]
    policy = m.policy([SHELL], dns=dns.address, cidrs=ALLOW_LOOPBACK)
    port = socks_port if way == "5" else forward_port
    with GatewayProcess(shell.folder / "gateway", [m.gateway(*listeners), policy]) as gateway:
        options = {
            "ProxyCommand": f"nc -X {way} -x 127.0.0.1:{port} %h %p",
            "IdentityFile": f"{shell.folder}/client",
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
        }
        written = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        command = ["ssh", "-F", "none", *written, "-p", str(shell.port)]
        done = subprocess.run(
            [*command, f"root@{SHELL}", "echo", "behind the gateway"],
            capture_output=True, timeout=WAIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.stdout == b"behind the gateway\n", done.stderr
        record = gateway.wait_for_record(authority=f"{SHELL}:{shell.port}")
        assert (record["reason"], record["kind"]) == ("-", "tunnel")
        done = subprocess.run(
            [*command, "root@other.egress.test", "true"],
            capture_output=True, timeout=WAIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 255
        gateway.wait_for_record(authority=f"other.egress.test:{shell.port}", reason="destination_not_allowed")
    dns.stop()
