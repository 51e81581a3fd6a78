"""Secrets out of raw files and variables: what counts, what is refused, and that nothing of them is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from egressproxy.config.reading import source_files
from egressproxy.config.reading.load import load
from egressproxy.config.reading.problems import ConfigError, Problem
from egressproxy.config.reading.source_files import MAX_BYTES, read_trust_bundles
from egressproxy.config.resources.core import Secret as SecretObject
from egressproxy.model.secret import SecretBytes, SecretSource
from tests.support.mounted import mount
from tests.support.pki import Pki

MANIFEST = "apiVersion: v1\nkind: Namespace\nmetadata: {name: agents}\n"


def values(tmp_path: Path, *sources: SecretSource, manifest: str = MANIFEST) -> dict[str, dict[str, bytes]]:
    """The Secrets that are there, by "namespace/name", each with its data."""
    (tmp_path / "a.yaml").write_text(manifest)
    found = load([tmp_path / "a.yaml", *sources]).of(SecretObject)
    return {
        each.full_name: {key: value.reveal() for key in each.keys if (value := each.value(key)) is not None}
        for each in found
    }


def refusal(tmp_path: Path, *sources: SecretSource, manifest: str = MANIFEST) -> str:
    with pytest.raises(ConfigError) as caught:
        values(tmp_path, *sources, manifest=manifest)
    assert "hush" not in str(caught.value)
    return str(caught.value)


def test_a_mounted_folder_is_a_secret_with_a_key_for_each_file(tmp_path: Path):
    mount(tmp_path / "openai", {"token": "hush", ".dockerconfigjson": "{}"})
    made = values(tmp_path, SecretSource("agents", "openai", path=tmp_path / "openai"))
    assert made == {"agents/openai": {"token": b"hush", ".dockerconfigjson": b"{}"}}
    mount(tmp_path / "openai", {"apiKey": "other"})
    assert values(tmp_path, SecretSource("agents", "openai", path=tmp_path / "openai")) == {
        "agents/openai": {"apiKey": b"other"}
    }


def test_what_is_exchanged_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A certificate of one moment and the key of another are no pair."""
    folder = tmp_path / "tls"
    mount(folder, {"tls.crt": "old", "tls.key": "old"})
    real, done = source_files._read, []

    def read(key: str, file: Path, problems: list[source_files.Problem]) -> bytes | None:
        value = real(key, file, problems)
        if not done:
            done.append(mount(folder, {"tls.crt": "new", "tls.key": "new"}))
        return value

    monkeypatch.setattr(source_files, "_read", read)
    made = values(tmp_path, SecretSource(name="tls", path=folder))
    assert made == {"default/tls": {"tls.crt": b"new", "tls.key": b"new"}}
    (found,) = load([tmp_path / "a.yaml", SecretSource(name="tls", path=folder)]).of(SecretObject)
    assert found.type == "kubernetes.io/tls"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"hush\n", b"hush"),
        (b"hush\r\n", b"hush"),
        (b"hush\n\n", b"hush\n"),
        (b" hush ", b" hush "),
        (b"\xff\n", b"\xff"),
    ],
)
def test_one_newline_at_the_end_is_the_editors(tmp_path: Path, written: bytes, expected: bytes):
    (tmp_path / "key").write_bytes(written)
    made = values(tmp_path, SecretSource(name="a", path=tmp_path / "key"))
    assert made == {"default/a": {"key": expected}}


def test_files_and_variables_may_make_one_secret(tmp_path: Path):
    (tmp_path / "one.pem").write_text("one")
    sources = [
        SecretSource(name="a", key="tls.crt", path=tmp_path / "one.pem"),
        SecretSource(name="a", key="tls.key", variable="KEY", value=SecretBytes(b"two")),
    ]
    assert values(tmp_path, *sources) == {"default/a": {"tls.crt": b"one", "tls.key": b"two"}}
    assert "key tls.crt of Secret default/a is there already, from" in refusal(tmp_path, *sources, sources[0])


def test_a_folder_of_secrets_has_them_by_name_or_by_namespace_and_name(tmp_path: Path):
    mount(tmp_path / "all" / "openai", {"token": "a"})
    mount(tmp_path / "all" / "agents" / "github", {"token": "b"})
    root = SecretSource(path=tmp_path / "all")
    assert values(tmp_path, root) == {"default/openai": {"token": b"a"}, "agents/github": {"token": b"b"}}
    (tmp_path / "all" / "stray").write_text("hush")
    assert "stray: this is no folder" in refusal(tmp_path, root)


def test_a_secret_of_a_manifest_and_one_of_a_file_are_both_named(tmp_path: Path):
    (tmp_path / "token").write_text("hush")
    manifest = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {token: hush}\n"
    said = refusal(tmp_path, SecretSource(name="a", path=tmp_path / "token"), manifest=manifest)
    assert f"{tmp_path}/token: Secret default/a: the same object stands at {tmp_path}/a.yaml:1" in said


@pytest.mark.parametrize("what", ["missing", "pipe", "folder", "large", "key", "name"])
def test_what_cannot_be_a_secret_refuses_the_configuration_and_names_the_file(tmp_path: Path, what: str):
    folder = tmp_path / "raw"
    folder.mkdir()
    source = SecretSource(name="a", path=folder)
    if what == "missing":
        source, expected = SecretSource(name="a", path=tmp_path / "gone"), "gone: cannot be read: no such file"
    elif what == "pipe":
        os.mkfifo(folder / "token")
        expected = "token: this is no regular file"
    elif what == "folder":
        (folder / "inner").mkdir()
        expected = "inner: this is no regular file"
    elif what == "large":
        (folder / "token").write_bytes(b"hush" * (MAX_BYTES // 4) + b"x")
        expected = f"Secret default/a has more than {MAX_BYTES} bytes"
    elif what == "key":
        (folder / "my token").write_text("hush")
        expected = "'my token' cannot be a key of a Secret"
    else:
        source, expected = SecretSource(name="A_b", path=folder), "'A_b' cannot be the name of a Secret"
    assert expected in refusal(tmp_path, source)


def test_of_a_folder_no_more_is_read_than_a_secret_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "raw"
    folder.mkdir()
    for number in range(900):
        with (folder / f"f{number:03}").open("wb") as file:
            file.truncate(400 * 1024)
    read: list[Path] = []
    real = source_files._read
    monkeypatch.setattr(source_files, "_read", lambda *args: read.append(args[1]) or real(*args))
    assert f"default/a has more than {MAX_BYTES} bytes" in refusal(tmp_path, SecretSource(name="a", path=folder))
    assert len(read) == 3


def test_of_many_files_the_folder_is_named(tmp_path: Path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for number in range(900):
        (folder / f"f{number}").write_text("hush")
    manifest = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n"
    said = refusal(tmp_path, SecretSource(name="a", path=folder), manifest=manifest)
    assert said.startswith(f"{folder}: Secret default/a: the same object stands at")


def test_its_manifest_shows_keys_and_no_value(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(MANIFEST)
    source = SecretSource("agents", "a", "token", variable="TOKEN", value=SecretBytes(b"hush"))
    (found,) = load([tmp_path / "a.yaml", source]).of(SecretObject)
    shown = str(found.to_manifest())
    assert "token" in shown
    assert "hush" not in shown + repr(found)
    assert "aHVzaA" not in shown + repr(found)  # in base64
    assert str(found.origin) == "environment variable TOKEN"


ONE, TWO = Pki().ca_pem, Pki().ca_pem


def read(path: Path) -> tuple[str, list[str]]:
    problems: list[Problem] = []
    source = SecretSource("", "lab", path=path, is_trust_bundle=True)
    secret = SecretSource("agents", "other", path=path)
    found = [pem for _, pem in read_trust_bundles([secret, source], problems)]
    return "".join(found), [problem.message for problem in problems]


def test_a_folder_gives_each_certificate_of_its_pem_files_once(tmp_path: Path):
    (tmp_path / "a.pem").write_text(
        f"Lab Root\n=======\n{ONE}\n-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----\n"
    )
    (tmp_path / "b.CRT").write_text(TWO.replace("\n", "\r\n"))
    (tmp_path / "0a1b2c3d.0").symlink_to("b.CRT")
    (tmp_path / "README").write_text("no certificate")
    (tmp_path / ".hidden.pem").write_text("no certificate")
    (tmp_path / "below.d").mkdir()
    pem, problems = read(tmp_path)
    assert problems == []
    assert sorted(pem.split("-----BEGIN")[1:]) == sorted((ONE + TWO).split("-----BEGIN")[1:])
    assert "PRIVATE" not in pem


def test_a_file_is_a_bundle(tmp_path: Path):
    (tmp_path / "bundle").write_text(ONE + TWO)
    assert read(tmp_path / "bundle") == (ONE + TWO, [])


def test_what_is_no_certificate_is_told(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    assert read(folder) == ("", ["there is no file with certificates in this folder"])
    (folder / "a.pem").write_text(ONE)
    (folder / "b.der.crt").write_bytes(b"\x30\x82\xff\x00")
    (folder / "c.pem").symlink_to("nowhere")
    os.mkfifo(folder / "d.pem")
    pem, problems = read(folder)
    assert pem == ONE
    lost, pipe = "cannot be read: no such file or directory", "this is no regular file"
    assert problems == ["there is no certificate in PEM in this file", lost, pipe]
    assert read(tmp_path / "gone")[1] == [lost]


def test_a_block_without_an_end_is_left_to_who_reads_the_certificates(tmp_path: Path):
    (tmp_path / "a.pem").write_text(ONE[:100])
    assert read(tmp_path)[0].startswith("-----BEGIN CERTIFICATE-----\n")
