"""The options for Secrets, as every verb that reads manifests has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from egressproxy import app
from egressproxy.cli.main import main
from egressproxy.model.secret import SecretBytes, SecretSource
from egressproxy.run_options import RunOptions
from tests.support.mounted import mount

MANIFESTS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: egressproxy
  listeners: [{name: web, port: 8080, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: api}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: api}]}]
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: api}
spec:
  destination: {type: Fqdn, fqdn: {hostname: a.example}, ports: [{number: 443, tls: {mode: Simple}}]}
  extensions:
  - name: key
    type: egressproxy.io/CredentialInjector:v1
    config: {secretRef: {name: key, key: token}, header: Authorization, template: "Bearer {}"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.yaml").write_text(MANIFESTS)
    (tmp_path / "token").write_text("hush\n")
    return tmp_path


def invoke(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert "hush" not in result.output
    return result


def test_check_explain_and_diff_know_secrets_of_files(folder: Path, monkeypatch: pytest.MonkeyPatch):
    manifests, secret = folder / "a.yaml", ("--secret", f"key={folder / 'token'}")
    assert invoke("check", manifests).exit_code == 1
    assert invoke("check", manifests, *secret).exit_code == 0
    asked = ("explain", "GET", "/", "-H", "Host: a.example", "--no-dns", "--config", manifests)
    assert "credential_missing" in invoke(*asked).output
    assert "Secret key/token" in invoke(*asked, *secret).output
    assert invoke("diff", manifests, manifests, *secret).exit_code == 0
    monkeypatch.setenv("KEY", "hush")
    assert invoke("check", manifests, "--secret-env", "key:token=KEY").exit_code == 0


def test_an_option_without_the_namespace_is_told_how_to_write_it(folder: Path):
    manifests = folder / "a.yaml"
    manifests.write_text(MANIFESTS.replace("metadata: {name: api}", "metadata: {name: api, namespace: agents}"))
    told = "give it as agents/key: --secret agents/key=…, or --secrets with a folder for agents"
    result = invoke("check", manifests, "--secret", f"key={folder / 'token'}")
    assert told in result.output
    assert told not in invoke("check", manifests, "--secret", f"agents/key={folder / 'token'}").output


def test_run_takes_variables_out_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[RunOptions] = []
    monkeypatch.setattr(app, "run", lambda options, *_: seen.append(options) or 0)
    monkeypatch.setenv("KEY", "hush")
    result = invoke(
        "run", "-c", folder / "a.yaml", "--secret-env", "agents/key:token=KEY", "--secret", f"a/b:c={folder / 'token'}",
        "--secrets", folder,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert seen[0].secrets == (
        SecretSource(path=folder),
        SecretSource("a", "b", "c", folder / "token"),
        SecretSource("agents", "key", "token", variable="KEY", value=SecretBytes(b"hush")),
    )
    assert seen[0].sources == (folder / "a.yaml", *seen[0].secrets)
    assert "KEY" not in os.environ


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--secret", "key"), "write [NAMESPACE/]NAME[:KEY]=PATH"),
        (("--secret", "a/b/c=/tmp"), "write [NAMESPACE/]NAME[:KEY]=PATH"),
        (("--secret", "key=/nowhere/at/all"), "there is no such file or folder"),
        (("--secret-env", "key=HOME"), "write [NAMESPACE/]NAME:KEY=VARIABLE"),
        (("--secret-env", "key:token=NOT_SET_AT_ALL"), "the environment variable NOT_SET_AT_ALL is not set"),
    ],
)
def test_wrong_usage_says_what_to_write(folder: Path, arguments: tuple[str, ...], said: str):
    result = invoke("check", folder / "a.yaml", *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_secrets_without_a_configuration_are_wrong_usage(folder: Path):
    assert invoke("run", "--secret", f"key={folder / 'token'}").exit_code == 2
    assert invoke("explain", "GET", "http://a/", "--secret", f"key={folder / 'token'}").exit_code == 2


def test_the_pod_of_the_docs_is_served_as_it_is_written(tmp_path: Path):
    """Its ConfigMap and its Secret as they are mounted, and the options of its container."""
    docs = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    block = next(text for text in docs.split("```yaml\n")[1:] if "kind: Deployment" in text.partition("```")[0])
    config_map, secret, deployment = yaml.safe_load_all(block.partition("```")[0])
    mount(tmp_path / "etc", config_map["data"])
    mount(tmp_path / "openai", secret["stringData"])
    container = deployment["spec"]["template"]["spec"]["containers"][1]
    places = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert container["args"][:3] == ["run", "--config", "/etc/egressproxy"]
    assert places == {"/etc/egressproxy": "configuration", "/var/run/secrets/openai": "openai"}
    option = container["args"][4].replace("/var/run/secrets/openai", str(tmp_path / "openai"))
    result = invoke("check", "--strict", tmp_path / "etc", container["args"][3], option)
    assert result.exit_code == 0, result.output
