"""Credentials of a plugin: what it says reaches nobody, and one that hangs is killed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from egressproxy.kubernetes import credential_plugin, credentials
from egressproxy.kubernetes.credentials import Credentials, CredentialsError
from egressproxy.run_options import ClusterOptions
from tests.support.waiting import until

ANSWER = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {}}


def kubeconfig(folder: Path, script: str, command: str = "sh") -> ClusterOptions:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": ["-c", script]}
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(value))
    return ClusterOptions(kubeconfig=file)


def script(folder: Path, does: str = "", **status: str) -> str:
    """It counts its runs in `ran`, and prints a token with the number of its run."""
    value = json.dumps({**ANSWER, "status": {"token": "TOKEN", **status}})
    return f"echo x >> {folder}/ran; {does} printf '%s' '{value}' | sed s/TOKEN/t$(wc -l < {folder}/ran | tr -d ' ')/"


def runs(folder: Path) -> int:
    return len((folder / "ran").read_text().split())


async def test_what_a_plugin_says_when_it_fails_is_not_repeated(tmp_path):
    with pytest.raises(CredentialsError, match="the credential plugin sh ended with status 3") as caught:
        await Credentials.load(kubeconfig(tmp_path, "echo the password is hush >&2; exit 3"))
    assert "hush" not in str(caught.value)


async def test_a_plugin_that_hangs_is_killed_with_what_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr(credential_plugin, "ANSWER_S", 0.2)
    hangs = f"sh -c 'echo $$ > {tmp_path}/child; sleep 1000' & echo $$ > {tmp_path}/pid; wait"
    with pytest.raises(CredentialsError, match=r"plugin sh has not ended within 0\.2 s, and was killed"):
        await Credentials.load(kubeconfig(tmp_path, hangs))
    for name in ("pid", "child"):
        with pytest.raises(ProcessLookupError):  # a zombie could be asked
            os.kill(int((tmp_path / name).read_text()), 0)


async def test_a_plugin_that_is_not_waited_for_is_killed_too(tmp_path):
    loading = asyncio.create_task(
        Credentials.load(kubeconfig(tmp_path, f"sleep 0.2; echo $$ > {tmp_path}/pid; sleep 1000"))
    )
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip() != "")
    asked = [each for each in asyncio.all_tasks() if each not in (loading, asyncio.current_task())]
    for each in asked:
        each.cancel()
    await asyncio.gather(loading, *asked, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_plugin_that_fails_is_not_run_again_at_once(tmp_path, monkeypatch):
    found = await Credentials.load(kubeconfig(tmp_path, script(tmp_path, f"[ ! -e {tmp_path}/broken ] &&")))
    monkeypatch.setattr(credential_plugin, "REFUSED_S", 0.0)
    (tmp_path / "broken").touch()
    for _ in range(3):
        with pytest.raises(CredentialsError, match="sh ended with status 1"):
            await found.authorization("Bearer t1")
    assert runs(tmp_path) == 2


async def test_a_token_that_is_refused_before_it_expires_is_got_anew_and_not_too_often(tmp_path, monkeypatch):
    found = await Credentials.load(
        kubeconfig(tmp_path, script(tmp_path, expirationTimestamp="2099-01-01T00:00:00Z"))
    )  # fmt: skip
    assert await found.authorization() == "Bearer t1"
    assert await found.authorization("Bearer t1") == "Bearer t1", "it has just run"
    monkeypatch.setattr(credential_plugin, "REFUSED_S", 0.0)
    refused = await asyncio.gather(*(found.authorization("Bearer t1") for _ in range(5)))
    assert refused == ["Bearer t2"] * 5
    assert await found.authorization("Bearer t1") == "Bearer t2", "another request has asked already"
    assert runs(tmp_path) == 2


@pytest.mark.parametrize(("status", "expected"), [({}, 1), ({"expirationTimestamp": "2001-01-01T00:00:00Z"}, 2)])
async def test_a_plugin_runs_again_when_what_it_said_expires(tmp_path, monkeypatch, status, expected):
    found = await Credentials.load(kubeconfig(tmp_path, script(tmp_path, **status)))
    monkeypatch.setattr(credentials, "RENEW_S", 0.0)
    assert await found.authorization() == f"Bearer t{expected}"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("yes", "printed more than 1048576 bytes"),
        ("echo '{}'", "printed no ExecCredential"),
        (f"echo '{json.dumps({**ANSWER, 'apiVersion': 'x/v1'})}'", "printed no ExecCredential"),
        (f"echo '{json.dumps({**ANSWER, 'status': {'clientCertificateData': 'x'}})}'", "gives neither a token nor"),
        (f"echo '{json.dumps({**ANSWER, 'status': {'token': 5}})}'", "printed no ExecCredential"),
    ],
)
async def test_what_is_no_answer_is_told(tmp_path, said, why):
    with pytest.raises(CredentialsError, match=why):
        await Credentials.load(kubeconfig(tmp_path, said))


async def test_a_program_that_is_not_there_is_told(tmp_path):
    with pytest.raises(CredentialsError, match=r"the credential plugin /.*/none cannot be started"):
        await Credentials.load(kubeconfig(tmp_path, "", command="./none"))
