"""Which files take the secrets of TLS connections. That they are written is tested in tests/e2e/tls_lab."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from egressproxy.net.tls_contexts.key_log import open_key_log


def test_a_file_is_made_for_nobody_else_and_appended_to(tmp_path: Path):
    file = tmp_path / "keys"
    for line in (b"one\n", b"two\n"):
        descriptor = open_key_log(file)
        os.write(descriptor, line)
        os.close(descriptor)
    assert file.read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_of_which_others_have_something_is_refused(tmp_path: Path, mode: int):
    file = tmp_path / "keys"
    file.touch()
    file.chmod(mode)
    with pytest.raises(ValueError, match="chmod 600"):
        open_key_log(file)


def test_a_link_a_pipe_and_a_folder_are_refused(tmp_path: Path):
    (tmp_path / "link").symlink_to("elsewhere")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "pipe", "."):
        with pytest.raises((OSError, ValueError)):
            open_key_log(tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()
