from __future__ import annotations

from pathlib import Path

import pytest

from egressproxy.model.secret import SecretBytes
from egressproxy.model.secret_source import ConfigSource, SecretSource


@pytest.mark.parametrize(
    "source",
    [
        Path("/etc/policies"),
        SecretSource(path=Path("/run/secrets")),
        SecretSource("ns", "openai", "token", Path("/run/token")),
        SecretSource("ns", "openai", "token", variable="TOKEN", value=SecretBytes(b"hush")),
    ],
)
def test_a_source_shows_no_secret(source: ConfigSource):
    assert "hush" not in repr(source) + str(source)
