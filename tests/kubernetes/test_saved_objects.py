"""The last good objects on disk."""

from __future__ import annotations

import zlib

import pytest

from egressproxy.kubernetes.object_store import StoredObject
from egressproxy.kubernetes.saved_objects import FILE, save, saved

SECRET = (("", "Secret", "team", "key"), StoredObject("1", b'{"data": "c2VjcmV0"}', b""))
GATEWAY = (("gateway.networking.k8s.io", "Gateway", "team", "gw"), StoredObject("2", b'{"kind": "Gateway"}', b""))
PLACES = {"gateways": "2"}


@pytest.fixture
def key(tmp_path):
    file = tmp_path / "key"
    file.write_text("a key that is long enough\n")
    return file


def test_secrets_are_left_out_without_a_key(tmp_path):
    save(tmp_path, [SECRET, GATEWAY], PLACES, None)
    assert b"c2VjcmV0" not in (tmp_path / FILE).read_bytes()
    found = saved(tmp_path, None)
    assert zlib.decompress(found.packed) == GATEWAY[1].manifest
    assert found.resource_versions == PLACES
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_secrets_are_encrypted_with_a_key(tmp_path, key):
    save(tmp_path, [SECRET, GATEWAY], PLACES, key)
    data = (tmp_path / FILE).read_bytes()
    assert b"c2VjcmV0" not in data + zlib.decompress(zlib.compress(data))
    assert b"c2VjcmV0" in zlib.decompress(saved(tmp_path, key).packed)


def test_what_was_changed_or_has_another_key_is_not_used(tmp_path, key, caplog):
    save(tmp_path, [SECRET], PLACES, key)
    assert saved(tmp_path, None) is None
    data = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(data.replace(b'"2"', b'"9"'))
    assert saved(tmp_path, key) is None
    (tmp_path / FILE).write_bytes(data)
    key.write_text("another one")
    assert saved(tmp_path, key) is None
    assert "written with another --state-key" in caplog.text


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format": 1}\n', b"\xff\n", b'{"format": 2, "encrypted": false}\nx'])
def test_what_is_no_such_file_is_not_used(tmp_path, data):
    (tmp_path / FILE).write_bytes(data)
    assert saved(tmp_path, None) is None


def test_what_is_not_encrypted_is_not_used_where_there_is_a_key(tmp_path, key, caplog):
    """Whoever cannot read the key could have written it."""
    save(tmp_path, [GATEWAY], PLACES, None)
    assert saved(tmp_path, key) is None
    assert "not encrypted, although --state-key is given" in caplog.text


def test_nothing_was_saved(tmp_path):
    assert saved(tmp_path, None) is None
