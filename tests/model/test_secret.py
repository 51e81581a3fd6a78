"""A secret shows itself only where it is asked to."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from egressproxy.model.secret import ConfigSource, SecretBytes, SecretSource


def test_no_way_of_printing_shows_it():
    secret = SecretBytes(b"open sesame")
    for shown in (
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!s:>30}",
        repr([secret]),
    ):
        assert "sesame" not in shown
    assert secret.reveal() == b"open sesame"


def test_it_is_not_pickled_or_copied_by_the_way():
    for leak in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not serialised"):
            leak(SecretBytes(b"open sesame"))


def test_equal_secrets_are_equal_so_that_a_reload_keeps_what_did_not_change():
    assert SecretBytes(b"a") == SecretBytes(b"a")
    assert len({SecretBytes(b"a"), SecretBytes(b"a"), SecretBytes(b"b")}) == 2
    assert SecretBytes(b"a") != b"a"


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
