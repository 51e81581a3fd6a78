"""`egressproxy ca`: files on disk, and what is said of them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from time import time

from click.testing import CliRunner, Result
from cryptography import x509

from egressproxy.cli.main import main
from egressproxy.config.compile.certificates import read_key_pair
from egressproxy.gateway.leaf_certificates.minting import SigningCa
from egressproxy.model.secret import SecretBytes
from tests.gateway.leaf_certificates.test_minting import handshake


def ca(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["ca", *(str(each) for each in arguments)])


def leaf_of(folder: Path, name: str = "a.example.com"):
    return SigningCa((folder / "tls.crt").read_text("ascii"), SecretBytes((folder / "tls.key").read_bytes())).mint(
        name, time()
    )


def test_init_makes_a_secret_for_the_gateway_and_a_file_for_clients(tmp_path: Path):
    folder = tmp_path / "ca"
    made = ca("init", folder, "--permit", "example.com")
    assert made.exit_code == 0, made.output
    assert "example.com" in made.output
    assert "No --permit" not in made.output
    assert stat.S_IMODE((folder / "tls.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(each.name for each in folder.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
    read_key_pair("ns/ca", (folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes())
    handshake((folder / "ca.crt").read_text("ascii"), leaf_of(folder), "a.example.com", tmp_path)


def test_init_replaces_nothing(tmp_path: Path):
    first = ca("init", tmp_path / "ca")
    assert first.exit_code == 0
    assert "No --permit: whoever has tls.key can impersonate every server" in first.output
    before = (tmp_path / "ca" / "tls.key").read_bytes()
    again = ca("init", tmp_path / "ca")
    assert again.exit_code == 1
    assert "ca rotate" in again.output
    assert (tmp_path / "ca" / "tls.key").read_bytes() == before


def test_show_says_all_but_the_key(tmp_path: Path):
    ca("init", tmp_path / "ca", "--name", "laboratory", "--days", "10", "--exclude", "bank.example")
    shown = json.loads(ca("show", tmp_path / "ca", "-o", "json").output)
    assert (shown["subject"], shown["permitted"], shown["excluded"]) == ("CN=laboratory", [], ["bank.example"])
    text = ca("show", tmp_path / "ca").output
    assert shown["sha256"] in text
    assert (tmp_path / "ca" / "tls.key").read_text("ascii").splitlines()[1] not in text


def test_clients_of_the_old_ca_go_on_until_the_rotation_is_finished(tmp_path: Path):
    folder = tmp_path / "ca"
    ca("init", folder, "--permit", "example.com")
    old = (folder / "ca.crt").read_text("ascii")
    first = ca("rotate", folder)
    assert first.exit_code == 0
    assert f"Next: give {folder}/ca.crt to all clients, then `ca rotate {folder} --finish`" in first.output
    both = (folder / "ca.crt").read_text("ascii")
    assert len(x509.load_pem_x509_certificates(both.encode())) == 2
    for trusted in (old, both):
        handshake(trusted, leaf_of(folder), "a.example.com", tmp_path)
    again = ca("rotate", folder)
    assert again.exit_code == 1
    assert "--finish" in again.output
    assert ca("rotate", folder, "--finish").exit_code == 0
    new = (folder / "ca.crt").read_text("ascii")
    assert len(x509.load_pem_x509_certificates(new.encode())) == 1
    for trusted in (both, new):
        handshake(trusted, leaf_of(folder), "a.example.com", tmp_path)
    assert json.loads(ca("show", folder, "-o", "json").output)["permitted"] == ["example.com"]
    assert ca("rotate", folder, "--finish").exit_code == 1


def test_a_leaked_ca_is_forgotten_at_once(tmp_path: Path):
    folder = tmp_path / "ca"
    ca("init", folder)
    old = (folder / "ca.crt").read_text("ascii")
    leaked = ca("rotate", folder, "--leaked")
    assert leaked.exit_code == 0
    assert (
        f"Next: give {folder}/ca.crt to all clients: they do not trust the new CA until they have it" in leaked.output
    )
    new = (folder / "ca.crt").read_text("ascii")
    assert len(x509.load_pem_x509_certificates(new.encode())) == 1
    assert new != old
    assert (folder / "tls.crt").read_text("ascii") == new
    handshake(new, leaf_of(folder), "a.example.com", tmp_path)


def test_trust_says_what_to_do_and_does_nothing(tmp_path: Path):
    folder = tmp_path / "ca"
    ca("init", folder)
    before = {each: each.read_bytes() for each in folder.iterdir()}
    said = ca("trust", folder)
    assert said.exit_code == 0
    assert {each: each.read_bytes() for each in folder.iterdir()} == before
    for wanted in (str(folder / "ca.crt"), "update-ca-certificates", "keytool", "SSL_CERT_FILE", "undo:"):
        assert wanted in said.output
    assert json.loads(ca("show", folder, "-o", "json").output)["sha256"] in said.output


def test_what_is_not_there_or_is_no_name_is_told(tmp_path: Path):
    for verb in ("show", "rotate", "trust"):
        missing = ca(verb, tmp_path / "none")
        assert missing.exit_code == 1
        assert "none" in missing.output
        assert "`ca init` makes a CA" in missing.output
    wrong = ca("init", tmp_path / "ca", "--permit", "*.example")
    assert wrong.exit_code == 2
    assert not (tmp_path / "ca").exists()
    ca("init", tmp_path / "ca")
    (tmp_path / "ca" / "tls.crt").write_text("x")
    assert "not PEM" in ca("show", tmp_path / "ca").output


def test_a_key_of_another_ca_signs_no_new_one(tmp_path: Path):
    for name in ("ca", "other"):
        ca("init", tmp_path / name)
    (tmp_path / "ca" / "tls.key").write_bytes((tmp_path / "other" / "tls.key").read_bytes())
    before = (tmp_path / "ca" / "ca.crt").read_bytes()
    for verb in ("show", "rotate"):
        refused = ca(verb, tmp_path / "ca")
        assert refused.exit_code == 1
        assert "does not belong to the certificate" in refused.output
    assert (tmp_path / "ca" / "ca.crt").read_bytes() == before


def test_new_asks_no_gateway_where_the_certificate_cannot_be_written(tmp_path: Path):
    refused = ca("new", "a", "--policy", "a/b", "--namespace", "a", "--out", tmp_path / "no" / "a.crt")
    assert refused.exit_code == 2
    assert f"there is no folder {tmp_path / 'no'}" in refused.output
