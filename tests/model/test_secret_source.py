from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from egressproxy.model.secret import SecretBytes
from egressproxy.model.secret_source import ConfigSource, SecretSource, plain_source, source_of


@pytest.mark.parametrize(
    "source",
    [
        Path("/etc/policies"),
        SecretSource(path=Path("/run/secrets")),
        SecretSource("ns", "openai", "token", Path("/run/token")),
        SecretSource("ns", "openai", "token", variable="TOKEN", value=SecretBytes(b"hush")),
    ],
)
def test_a_source_goes_through_a_pipe_as_plain_values(source: ConfigSource):
    assert source_of(pickle.loads(pickle.dumps(plain_source(source)))) == source
    assert "hush" not in repr(source) + str(source)
