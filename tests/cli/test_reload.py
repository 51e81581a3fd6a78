"""`reload` asks a running process; the rest is in tests/e2e/test_guarded.py."""

from __future__ import annotations

from click.testing import CliRunner

from egressproxy.cli.main import main
from tests.support.net import free_port


def test_nobody_there_is_2():
    result = CliRunner().invoke(main, ["reload", "--admin", f"127.0.0.1:{free_port()}"])
    assert result.exit_code == 2
    assert "does not answer" in result.output
