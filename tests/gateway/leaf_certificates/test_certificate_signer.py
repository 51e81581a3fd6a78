"""The process that mints runs while there is something to mint, and its end loses nothing."""

from __future__ import annotations

import sys
import threading
import time
from subprocess import PIPE, Popen, run

import pytest

from egressproxy.gateway.leaf_certificates import certificate_signer
from egressproxy.gateway.leaf_certificates.certificate_signer import CannotSign, CertificateSigner, SigningProcess
from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.net.process import child_command
from tests.support.waiting import WAIT_S

CA_PEM, KEY = new_ca("tests", time.time(), 30)


@pytest.fixture
def process():
    made = SigningProcess()
    yield made
    made.end()


def mint(process: SigningProcess, name: str = "a.example") -> str:
    return process.mint(CA_PEM, KEY, name, time.time()).chain_pem


def test_it_runs_from_the_first_name_until_its_end(process: SigningProcess):
    assert process._running is None
    mint(process)
    running = process._running
    assert running is not None
    mint(process, "b.example")
    assert process._running is running
    process.end()
    assert running.poll() is not None


def test_one_that_has_died_is_replaced(process: SigningProcess):
    mint(process)
    assert process._running is not None
    process._running.kill()
    process._running.wait()
    assert "BEGIN CERTIFICATE" in mint(process)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (["false"], "the process that mints ended with status 1"),
        (["/nowhere"], "the process that mints cannot be asked: No such file or directory"),
    ],
)
def test_one_that_does_not_answer_is_told(
    process: SigningProcess, monkeypatch: pytest.MonkeyPatch, program: list[str], told: str
):
    if program == ["false"]:
        program = [sys.executable, "-c", "input(); raise SystemExit(1)"]
    monkeypatch.setattr(certificate_signer, "_COMMAND", program)
    with pytest.raises(CannotSign, match=told):
        mint(process)


def test_one_that_writes_what_is_no_answer_is_ended(process: SigningProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        certificate_signer, "_COMMAND", [sys.executable, "-c", "input(); print('a warning\\n{}', flush=True); input()"]
    )
    with pytest.raises(CannotSign, match="what is no answer, and"):
        mint(process)
    assert process._running is None


def test_one_that_hangs_is_ended(process: SigningProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(certificate_signer, "_COMMAND", [sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(certificate_signer, "ANSWER_S", 0.01)
    with pytest.raises(CannotSign, match="SIGKILL"):
        mint(process)


def test_it_ends_with_who_asks_it():
    asking = Popen(certificate_signer._COMMAND, stdin=PIPE, stdout=PIPE)
    assert asking.communicate(timeout=WAIT_S) == (b"", None)
    assert asking.returncode == 0


def test_the_thread_ends_when_there_is_nothing_to_mint_and_another_follows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(certificate_signer, "IDLE_S", 0.01)
    made = CertificateSigner()

    def work(process: SigningProcess) -> tuple[threading.Thread, SigningProcess]:
        mint(process)
        return threading.current_thread(), process

    for _ in range(2):
        thread, process = made.do(work).result(WAIT_S)
        thread.join(WAIT_S)
        assert process._running is None


def test_what_serves_imports_nothing_that_signs():
    modules = "egressproxy.app, egressproxy.gateway.builders.snapshot_builder"
    said = f"import {modules}; print([m for m in sys.modules if 'cryptography' in m])"
    done = run(child_command(said), capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.strip() == "[]"
