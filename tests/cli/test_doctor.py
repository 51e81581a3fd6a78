"""Each probe says what it has seen on a machine that is made up, and the command says all of it in bounded time."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from egressproxy.cli import config_probes, doctor, machine_probes
from egressproxy.cli.machine_probes import FAILURE, OK, WARNING, Finding
from egressproxy.cli.main import main
from egressproxy.net.process import cpu_quota
from egressproxy.run_options import ADMIN_IS_CLOSED, ClusterOptions, RunOptions
from egressproxy.upstream.dns_client import SYSTEM_TRUST
from egressproxy.upstream.dns_server import Server
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port


def write(folder: Path, port: int, server: str = "") -> None:
    """A Gateway with a listener; and with a policy, if that names a DNS server."""
    policies = [m.policy(("api.github.com",), dns=server)] if server else []
    m.write(folder / "a.yaml", [m.gateway(m.forward_listener(port)), *policies])


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name servers of the machine that runs the tests are not asked."""
    monkeypatch.setitem(machine_probes.PROBES, "dns", lambda: [])


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--admin", "off", *arguments])


@pytest.mark.usefixtures("quiet")
def test_a_configuration_is_looked_at_with_its_ports_and_dns_servers(tmp_path: Path):
    with NameServer({"example.com": ["192.0.2.1"]}) as names:
        write(tmp_path, free_port(), names.address)
        result = invoke("--config", str(tmp_path), "--json")
    found = json.loads(result.stdout)
    by_topic = {each["topic"]: each for each in found["findings"]}
    assert result.exit_code == 0, result.output
    assert found["ok"] is True
    assert by_topic["configuration"]["seen"] == "2 objects, all served as written"
    assert by_topic["ports"]["seen"].startswith("listener agents/gw/forward: 127.0.0.1:")
    assert by_topic["dns"]["seen"].startswith(f"{names.address} answers NOERROR for example.com")


def test_an_admin_address_on_a_network_needs_a_token():
    def found(**given: Any) -> list[str]:
        return [each.seen for each in config_probes.ports(RunOptions(takeover=Path("/"), **given)) if each.level != OK]

    assert found(admin=("0.0.0.0", 15900)) == [ADMIN_IS_CLOSED]
    assert not found(admin=("0.0.0.0", 15900), api_token_file=Path("token"))
    assert not found(admin=("0.0.0.0", 15900), ui_oidc_issuer="https://login.example")
    assert not found(admin=None) + found()


def test_what_the_api_has_written_is_looked_at_too(tmp_path: Path):
    write(tmp_path, free_port())
    found = [*config_probes.configuration(RunOptions(state_dir=tmp_path))]
    assert [each.topic for each in found] == ["", "ports"]
    assert not [*config_probes.configuration(RunOptions(state_dir=tmp_path / "none"))]
    (told,) = config_probes.configuration(RunOptions(state_dir=tmp_path, cluster=ClusterOptions()))
    assert "API server" in told.seen


def test_a_folder_that_may_not_be_entered_is_a_failure_and_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def forbidden(path: object, *_: object, **__: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    options = RunOptions(state_dir=tmp_path / "state", socket_dirs=(tmp_path,), config=(tmp_path / "a.yaml",))
    write(tmp_path, free_port())
    stat = os.stat
    monkeypatch.setattr(
        os, "stat", lambda path, *a, **b: (forbidden if str(path).endswith("/state") else stat)(path, *a, **b)
    )
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert [each.level for each in config_probes.files(options)] == [FAILURE, FAILURE]
    assert len([*config_probes.configuration(options)]) == 2


@pytest.mark.usefixtures("quiet")
def test_what_cannot_be_had_is_a_failure_and_the_status_says_so(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write(tmp_path, port, "127.0.0.1")
        result = invoke("--config", str(tmp_path), "--access-log", str(tmp_path / "gone" / "log"), "--api-writes")
        assert "failure options       --api-writes needs a folder" in result.stdout
        assert "failure options       --port is for the open proxy" in invoke("-c", str(tmp_path), "--port", "1").stdout
        result = invoke("-c", str(tmp_path), "--access-log", str(tmp_path / "gone" / "log"))
    assert result.exit_code == 1
    assert f"cannot bind 127.0.0.1:{port}: Address already in use (`ss -ltnp` shows" in result.stdout
    assert f"{tmp_path}/gone: does not exist (mkdir -p {tmp_path}/gone)" in result.stdout


@pytest.mark.usefixtures("quiet")
def test_a_broken_manifest_is_a_failure_with_its_place(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("kind: Gateway\n")
    result = invoke("-c", str(tmp_path))
    assert result.exit_code == 1
    assert f"failure configuration {tmp_path}/a.yaml:1:1" in result.stdout


@pytest.mark.usefixtures("quiet")
def test_a_probe_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch):
    hangs = threading.Event()

    def slow() -> Iterator[Finding]:
        yield Finding(OK, "Linux")
        hangs.wait(30)

    monkeypatch.setattr(doctor, "PROBES_S", 0.1)
    monkeypatch.setitem(machine_probes.PROBES, "kernel", slow)
    monkeypatch.setitem(machine_probes.PROBES, "build", lambda: 1 / 0)
    result = invoke()
    hangs.set()
    assert "ok      kernel        Linux\nwarning kernel        no result within 0.1 s" in result.stdout
    assert "warning build         could not be looked at: ZeroDivisionError" in result.stdout


def test_it_has_the_options_of_run():
    shown = invoke("--help").stdout
    for option in ("--workers", "--state-dir", "--secret-env", "--source", "--tls-key-log", "--connect"):
        assert option in shown
    assert "--listener" not in shown


def test_a_key_log_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_probes, "PROBES", {})
    monkeypatch.setattr(config_probes, "PROBES", {})
    assert invoke("--tls-key-log", str(tmp_path / "keys")).exit_code == 0
    assert not (tmp_path / "keys").exists()


def test_a_server_that_does_not_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_probes, "ANSWER_S", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        (found,) = machine_probes.asked([(Server("127.0.0.1", silent.getsockname()[1], "udp", ""), SYSTEM_TRUST)])
    assert found.level == FAILURE
    assert "has not answered" in found.seen


def test_search_domains_that_cost_queries_are_told(tmp_path: Path):
    (tmp_path / "resolv.conf").write_text("search a.test b.test\noptions ndots:5\n")
    failure, search = machine_probes.dns(tmp_path / "resolv.conf")
    assert (failure.level, search.level) == (FAILURE, OK)
    assert "fewer than 5 dots are tried below a.test, b.test first" in search.seen
    assert "up to 2 more queries" in search.remedy


def test_what_strict_clients_refuse_of_a_root():
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Corp")])
    now = datetime.now(UTC)
    bare = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now).not_valid_after(now + timedelta(days=1))
    )  # fmt: skip
    sloppy = bare.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=False)
    assert machine_probes.strict_problems(sloppy.sign(key, SHA256())) == [
        "no subject key identifier", "no key usage", "basic constraints not critical",
    ]  # fmt: skip


def test_roots_that_cannot_be_read_are_a_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/gone.pem")
    first, *_ = machine_probes.roots()
    assert (first.level, first.seen) == (FAILURE, "$SSL_CERT_FILE names /gone.pem, which cannot be read")


def test_a_clock_before_the_installation_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_probes.time, "time", lambda: 1000.0)
    (found,) = machine_probes.clock()
    assert (found.level, found.remedy) == (FAILURE, "set the clock")


def test_a_kernel_call_that_is_refused_is_as_bad_as_what_needs_it(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    for name, level in (("memfd_create", FAILURE), ("pidfd_open", WARNING)):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, refused)
            found = [each for each in machine_probes.kernel() if "is refused" in each.seen]
        assert [each.level for each in found] == [level]


def test_proxies_of_the_environment_are_told_without_their_passwords(monkeypatch: pytest.MonkeyPatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HTTPS_PROXY", "http://alice:geheim@proxy.corp:3128/?key=geheim")
    (found,) = machine_probes.environment()
    assert found.level == WARNING
    assert found.seen.startswith("$HTTPS_PROXY: proxy.corp:3128; ")
    assert "geheim" not in str(found)


def test_more_workers_than_the_quota_allows_are_a_warning(tmp_path: Path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(str(256 << 20))
    assert cpu_quota(tmp_path) == 1.5
    *_, memory, processors = config_probes.limits(RunOptions(workers=4), tmp_path)
    assert (memory.level, processors.level) == (WARNING, WARNING)
    assert "4 workers: more workers than processors" in processors.seen
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path) == 0


def test_secrets_that_everybody_reads_are_told(tmp_path: Path):
    manifest = tmp_path / "secret.yaml"
    manifest.write_text("apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: a}\n")
    manifest.chmod(0o644)
    options = RunOptions(config=(tmp_path,))
    *_, found = config_probes.configuration(options)
    assert (found.level, found.seen) == (WARNING, f"every user of this machine can read {manifest}")
    manifest.chmod(0o640)
    *_, found = config_probes.configuration(options)
    assert (found.level, found.topic) == (OK, "files")


def test_an_argument_of_connect_that_is_no_host_is_wrong_usage():
    assert invoke("--connect", "http://a/").exit_code == 2


def test_a_server_that_refuses_is_told_with_the_remedy():
    port = free_port()
    (found,) = machine_probes.connection(machine_probes.target_of(f"127.0.0.1:{port}"))
    assert (found.level, found.seen) == (FAILURE, f"127.0.0.1:{port}: Connection refused")
