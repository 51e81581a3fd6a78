"""Whom an API server is asked as: tokens in files, exec plugins and client certificates, which are renewed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from egressproxy.kubernetes import credentials as module
from egressproxy.kubernetes.api_client import ApiClient, ApiError
from egressproxy.kubernetes.credentials import Credentials, CredentialsError
from egressproxy.run_options import ClusterOptions
from tests.support.api_server import ApiServer
from tests.support.pki import Pki


def kubeconfig(folder: Path, user: dict[str, Any], server: str = "https://127.0.0.1:6443", **cluster: Any) -> Path:
    file = folder / "kubeconfig"
    value = {
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "test", "user": user}],
    }  # fmt: skip
    file.write_text(json.dumps(value))
    return file


async def load(file: Path, context: str | None = None) -> Credentials:
    return await Credentials.load(ClusterOptions(kubeconfig=file, context=context))


async def test_a_token_in_a_file_is_read_again(tmp_path, monkeypatch):
    token = tmp_path / "token"
    token.write_text("first")
    found = await load(kubeconfig(tmp_path, {"tokenFile": str(token)}))
    assert await found.authorization() == "Bearer first"
    token.write_text("second")
    assert await found.authorization() == "Bearer first"  # not at each request
    monkeypatch.setattr(module, "RENEW_S", 0.0)
    assert await found.authorization() == "Bearer second"


async def test_a_refused_token_is_read_again_at_once(tmp_path):
    token = tmp_path / "token"
    token.write_text("first")
    found = await load(kubeconfig(tmp_path, {"tokenFile": str(token)}))
    token.write_text("second")
    assert await found.authorization("Bearer first") == "Bearer second"
    token.write_text("third")
    assert await found.authorization("Bearer first") == "Bearer second", "another request has asked already"


async def test_an_exec_plugin_gives_the_token(tmp_path):
    plugin = tmp_path / "plugin.py"
    status = {"token": "of-the-plugin", "expirationTimestamp": "2099-01-01T00:00:00Z"}
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    plugin.write_text(f"print({json.dumps(answer)!r})")
    spec = {
        "apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": [str(plugin)],
        "interactiveMode": "Never",
    }  # fmt: skip
    found = await load(kubeconfig(tmp_path, {"exec": spec}))
    assert await found.authorization() == "Bearer of-the-plugin"


async def test_the_service_account_of_a_pod_is_read_again(tmp_path, monkeypatch):
    from kubernetes.aio.config import incluster_config

    pki = Pki()
    (tmp_path / "ca.crt").write_text(pki.ca_pem)
    (tmp_path / "token").write_text("projected")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = await Credentials.load(ClusterOptions())
    assert found.host == "https://10.0.0.1:443"
    refused = await found.authorization()
    assert refused.lower() == "bearer projected"
    (tmp_path / "token").write_text("renewed")
    assert (await found.authorization(refused)).lower() == "bearer renewed"


async def test_a_certificate_that_is_renewed_asks_for_another_context(tmp_path):
    (tmp_path / "client.crt").write_text("one")
    (tmp_path / "client.key").write_text("key")
    user = {"client-certificate": str(tmp_path / "client.crt"), "client-key": str(tmp_path / "client.key")}
    found = await load(kubeconfig(tmp_path, user))
    before = found.files()
    (tmp_path / "client.crt").write_text("another")
    assert found.files() != before
    with pytest.raises(CredentialsError, match="its certificates cannot be used"):
        found.tls_context()


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "kubeconfig"), ("{}", "kubeconfig"), ("[1]", "kubeconfig"), ("a: [", "kubeconfig")],
)
async def test_what_is_no_kubeconfig_is_told_with_its_name(tmp_path, text, words):
    file = tmp_path / "broken"
    file.write_text(text)
    with pytest.raises(CredentialsError, match=str(file)) as told:
        await load(file)
    assert words in str(told.value)


async def test_a_context_that_is_not_there_is_told(tmp_path):
    with pytest.raises(CredentialsError, match="elsewhere"):
        await load(kubeconfig(tmp_path, {}), "elsewhere")


async def test_no_token_is_shown(tmp_path):
    found = await load(kubeconfig(tmp_path, {"token": "of-mine"}))
    assert "of-mine" not in repr(found)
    assert await found.authorization() == "Bearer of-mine"


async def test_a_request_that_is_refused_once_is_asked_again(tmp_path):
    server = ApiServer()
    async with server.running():
        client = ApiClient(await load(kubeconfig(tmp_path, {"token": "of-mine"}, server.url)))
        with pytest.raises(ApiError, match="404"):
            await client.get("/apis/egressproxy.io/v1alpha1/namespaces/a/nothing")
        assert client.requests == {"404": 1}
        await client.close()
