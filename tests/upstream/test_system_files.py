import errno
import os
from pathlib import Path

import pytest

from egressproxy.upstream import system_files
from egressproxy.upstream.system_files import SystemResolver, WatchedFile, parse_hosts, parse_resolv_conf


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_lack_of_descriptors_says_nothing_about_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    path = tmp_path / "hosts"
    path.write_text("192.0.2.1 a.example\n")
    hosts = WatchedFile(str(path), parse_hosts)
    monkeypatch.setattr(system_files, "FILE_CHECK_S", 0.0)

    def lacking(*_arguments: object, **_more: object) -> object:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr("builtins.open", lacking)
        assert hosts.read() == {}  # not read yet; asked again at the next look-up
    assert [str(address) for address in hosts.read()["a.example"]] == ["192.0.2.1"]
    path.write_text("192.0.2.2 a.example\n# longer\n")
    with monkeypatch.context() as broken:
        broken.setattr("builtins.open", lacking)
        assert [str(address) for address in hosts.read()["a.example"]] == ["192.0.2.1"]
    assert [str(address) for address in hosts.read()["a.example"]] == ["192.0.2.2"]


def test_a_file_that_is_gone_has_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "hosts"
    path.write_text("192.0.2.1 a.example\n")
    hosts = WatchedFile(str(path), parse_hosts)
    monkeypatch.setattr(system_files, "FILE_CHECK_S", 0.0)
    assert "a.example" in hosts.read()
    path.unlink()
    assert hosts.read() == {}


@pytest.mark.parametrize(
    ("text", "ndots"),
    [("", 1), ("options ndots:0", 0), ("options timeout:1 ndots:5", 5), ("options ndots:99", 15),
     ("options ndots:", 1), ("options ndots:-1", 1), ("options ndots:3\noptions edns0", 3), ("options", 1)],
)  # fmt: skip
def test_ndots_is_read_as_the_system_reads_it(text: str, ndots: int):
    said = parse_resolv_conf(f"nameserver 192.0.2.1\n\nsearch a.test. B.test\n{text}\n", "udp")
    assert (said.ndots, said.search, [server.host for server in said.servers]) == (
        ndots, ("a.test", "b.test"), ["192.0.2.1"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("host", "ndots", "names"),
    [("db", 0, ["db"]), ("db", 1, ["db.a.test", "db"]), ("db.x", 1, ["db.x"]), ("db.x", 2, ["db.x.a.test", "db.x"])],
)
def test_which_names_are_asked_for(host: str, ndots: int, names: list[str]):
    assert SystemResolver(search=("a.test",), ndots=ndots).names(host) == names
