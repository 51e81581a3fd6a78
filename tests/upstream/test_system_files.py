import errno
import os
from pathlib import Path

import pytest

from egressproxy.upstream import system_files
from egressproxy.upstream.system_files import HostsFile


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_lack_of_descriptors_says_nothing_about_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    path = tmp_path / "hosts"
    path.write_text("192.0.2.1 a.example\n")
    hosts = HostsFile(str(path))
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
    hosts = HostsFile(str(path))
    monkeypatch.setattr(system_files, "FILE_CHECK_S", 0.0)
    assert "a.example" in hosts.read()
    path.unlink()
    assert hosts.read() == {}
