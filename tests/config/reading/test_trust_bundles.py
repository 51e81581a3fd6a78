"""ClusterTrustBundles out of PEM files and folders."""

from __future__ import annotations

import os
from pathlib import Path

from egressproxy.config.reading.problems import Problem
from egressproxy.config.reading.trust_bundles import read_trust_bundles
from egressproxy.model.secret import SecretSource
from tests.support.pki import Pki

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
    assert problems == ["there is no certificate in PEM in this file", *["this is no regular file"] * 2]
    assert read(tmp_path / "gone")[1] == ["this is no regular file"]


def test_a_block_without_an_end_is_left_to_who_reads_the_certificates(tmp_path: Path):
    (tmp_path / "a.pem").write_text(ONE[:100])
    assert read(tmp_path)[0].startswith("-----BEGIN CERTIFICATE-----\n")
