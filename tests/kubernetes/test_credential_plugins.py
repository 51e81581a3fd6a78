"""Credentials of a plugin: what it says reaches nobody, and one that hangs is told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from egressproxy.kubernetes import credentials
from egressproxy.kubernetes.credentials import Credentials, CredentialsError
from egressproxy.run_options import ClusterOptions

TOKEN = json.dumps({
    "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "hush"},
})  # fmt: skip


def kubeconfig(folder: Path, script: str) -> ClusterOptions:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}
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


async def test_what_a_plugin_says_when_it_fails_is_not_repeated(tmp_path):
    with pytest.raises(CredentialsError, match="exec: process returned 3") as caught:
        await Credentials.load(kubeconfig(tmp_path, "echo the password is hush >&2; exit 3"))
    assert "hush" not in str(caught.value)


async def test_a_plugin_that_hangs_is_told_and_runs_once(tmp_path, monkeypatch):
    found = await Credentials.load(kubeconfig(tmp_path, f"echo x >> {tmp_path}/ran; printf '%s' '{TOKEN}'"))
    assert await found.authorization() == "Bearer hush"
    monkeypatch.setattr(credentials, "ANSWER_S", 0.2)
    gone = asyncio.Event()

    async def hangs() -> None:
        began.append(1)
        await gone.wait()

    began: list[int] = []
    monkeypatch.setattr(found, "_renew", hangs)
    for _ in range(2):
        asked = (found.authorization(is_refused=True) for _ in range(3))
        refused = await asyncio.gather(*asked, return_exceptions=True)
        assert all("has not answered within 0.2 s" in str(each) for each in refused)
    assert began == [1]
    gone.set()
    await asyncio.sleep(0)
    assert await found.authorization(is_refused=True) == "Bearer hush"
