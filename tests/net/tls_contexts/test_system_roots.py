"""The system's CA certificates: when they count as others, and that contexts are made anew then."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest

from egressproxy.ir.backend import BackendTlsIR
from egressproxy.net.tls_contexts import contexts, system_roots
from egressproxy.net.tls_contexts.contexts import client_context, make_ready
from egressproxy.net.tls_contexts.system_roots import LOOK_S, in_force, mark, put_in_force, watched
from tests.support.pki import Pki


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file, folder = tmp_path / "roots.pem", tmp_path / "certs"
    folder.mkdir()
    file.write_text(Pki().ca_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    monkeypatch.setattr(system_roots, "_in_force", "")
    monkeypatch.setattr(contexts, "_present", contexts._OfSystemRoots(""))
    monkeypatch.setattr(contexts, "_next", contexts._OfSystemRoots(""))
    return file


def test_another_file_in_place_or_by_rename_is_another_mark(bundle: Path):
    first = mark()
    assert mark() == first != ""
    bundle.write_text(Pki().ca_pem + "\n")
    second = mark()
    (bundle.parent / "new").write_text(bundle.read_text())
    (bundle.parent / "new").replace(bundle)
    assert len({first, second, mark()}) == 3


def test_in_the_folder_the_names_count_that_openssl_looks_for(bundle: Path):
    folder, first = bundle.parent / "certs", mark()
    (folder / "root.pem").write_text(Pki().ca_pem)
    assert mark() == first
    (folder / "0123abcd.0").symlink_to("root.pem")
    second = mark()
    assert second != first
    (folder / "root.pem").write_text(Pki().ca_pem + "\n\n")
    assert mark() not in (first, second)


def test_without_any_there_is_no_mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "no-folder"))
    assert mark() == ""


def test_a_watch_looks_now_and_then(bundle: Path):
    now = 100.0
    look = watched(lambda: now)
    first = look()
    os.unlink(bundle)
    assert look() == first
    now += LOOK_S
    assert look() == ""


def test_contexts_with_former_roots_of_the_system_are_let_go(bundle: Path):
    """Each has nearly a megabyte, and roots that a cluster hands out change all the time."""
    own = BackendTlsIR(ca_pem=Pki().ca_pem)
    kept, former = client_context(own), []
    for number in range(5):
        put_in_force(str(number))
        former.append(weakref.ref(client_context(BackendTlsIR())))
    gc.collect()
    assert [each() is None for each in former] == [True] * 4 + [False]
    assert client_context(own) is kept


def test_contexts_that_trust_the_system_are_made_anew_with_other_roots_and_no_others(bundle: Path):
    own = BackendTlsIR(ca_pem=Pki().ca_pem)
    before, before_own = client_context(BackendTlsIR()), client_context(own)
    (known,) = before.get_ca_certs()
    assert client_context(BackendTlsIR()) is before
    bundle.write_text(Pki().ca_pem)
    put_in_force(mark())
    assert in_force() == mark()
    after = client_context(BackendTlsIR())
    assert after is not before
    assert after.get_ca_certs() != [known]
    assert client_context(own) is before_own


def test_contexts_in_use_are_made_anew_beforehand_and_the_loop_reads_no_bundle(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    used, spec = [client_context(BackendTlsIR(), alpn) for alpn in (("h2",), ("http/1.1",))], BackendTlsIR()
    bundle.write_text(Pki().ca_pem)
    make_ready(mark())
    assert client_context(spec, ("h2",)) is used[0], "they are not in force yet"
    monkeypatch.setattr(contexts, "_client_context", None)  # nothing is made from here on
    put_in_force(mark())
    fresh = [client_context(spec, alpn) for alpn in (("h2",), ("http/1.1",))]
    assert not set(fresh) & set(used)
    assert fresh[0].get_ca_certs() != used[0].get_ca_certs()


def test_roots_that_were_made_ready_and_never_came_into_force_are_not_used(bundle: Path):
    client_context(BackendTlsIR())
    make_ready("refused")
    bundle.write_text(Pki().ca_pem)
    put_in_force(mark())
    (known,) = client_context(BackendTlsIR()).get_ca_certs()
    bundle.write_text(Pki().ca_pem)
    put_in_force("refused")
    assert client_context(BackendTlsIR()).get_ca_certs() != [known]
