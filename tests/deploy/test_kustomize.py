"""The kustomize bases: they are what the chart renders, and what is built from them is the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.deploy.kustomize_bases import bases
from tests.deploy.tools import KUSTOMIZE, ROOT, Object, gateway_container, json_of, kustomize, of_kind, one, template

ADDED_BY_HELM = {"helm.sh/chart", "app.kubernetes.io/managed-by"}


def test_the_bases_are_what_the_chart_renders_now():
    stale = [path.name for path, text in bases().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "the chart has changed: make kustomize"


def without_helm(value: object) -> object:
    if isinstance(value, list):
        return [without_helm(each) for each in value]
    if isinstance(value, dict):
        return {name: without_helm(each) for name, each in value.items() if name not in ADDED_BY_HELM}
    return value


def by_name(objects: list[Object]) -> dict[str, str]:
    return {f"{each['kind']} {each['metadata']['name']}": json_of(without_helm(each)) for each in objects}


@pytest.mark.parametrize(("base", "mode"), [("standalone", "deployment"), ("daemonset", "daemonset")])
def test_a_base_builds_what_helm_installs(base: str, mode: str):
    built = by_name(kustomize(KUSTOMIZE / "base" / base))
    assert built == by_name(template("--set", f"mode={mode}"))


def overlay(folder: Path, kustomization: Object, **files: str) -> list[Object]:
    """What is built of an overlay in this folder."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
    return kustomize(folder)


def test_an_overlay_gives_a_base_another_namespace_and_image(tmp_path: Path):
    objects = overlay(
        tmp_path,
        {
            "resources": [os.path.relpath(KUSTOMIZE / "base" / "standalone", tmp_path)],
            "namespace": "egress-eu",
            "images": [{"name": "egressproxy", "newName": "registry.example/egressproxy", "newTag": "1"}],
            "replicas": [{"name": "egressproxy", "count": 5}],
        },
    )
    deployment = one("Deployment", objects)
    container = gateway_container(deployment["spec"]["template"])
    assert (deployment["spec"]["replicas"], container["image"]) == (5, "registry.example/egressproxy:1")
    assert {
        subject["namespace"] for each in of_kind("ClusterRoleBinding", objects) for subject in each["subjects"]
    } == {"egress-eu"}
    assert not [each for each in container["args"] if "egressproxy-system" in each]  # $(POD_NAMESPACE) follows


def workload(kind: str, *, labelled: bool) -> str:
    labels = {"egressproxy.io/sidecar": "true"} if labelled else {}
    pod = {
        "containers": [
            {
                "name": "agent",
                "image": "example.com/agent:1",
                "envFrom": [{"configMapRef": {"name": "egressproxy-client-env"}}],
            }
        ],
        "initContainers": [{"name": "migrate", "image": "example.com/agent:1"}],
    }
    return yaml.safe_dump(
        {
            "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
            "kind": kind,
            "metadata": {"name": f"agent-{kind.lower()}-{labelled}".lower(), "labels": labels},
            "spec": {"template": {"metadata": {"labels": {"app": "agent"}}, "spec": pod}},
        }
    )


def test_the_component_gives_labelled_workloads_a_sidecar_and_others_none(tmp_path: Path):
    objects = overlay(
        tmp_path,
        {
            "resources": ["deployment.yaml", "job.yaml", "other.yaml"],
            "components": [os.path.relpath(KUSTOMIZE / "components" / "sidecar", tmp_path)],
            "namespace": "agents",
        },
        deployment=workload("Deployment", labelled=True),
        job=workload("Job", labelled=True),
        other=workload("Deployment", labelled=False),
    )
    pods = {
        each["metadata"]["name"]: each["spec"]["template"] for each in objects if "template" in each.get("spec", {})
    }
    for name in ("agent-deployment-true", "agent-job-true"):
        spec = pods[name]["spec"]
        assert [each["name"] for each in spec["initContainers"]] == ["egressproxy", "migrate"]  # it starts first
        assert gateway_container(pods[name])["restartPolicy"] == "Always"
        assert pods[name]["metadata"]["labels"] == {"app": "agent", "egressproxy.io/sidecar": "true"}
        assert spec["containers"][0]["image"] == "example.com/agent:1"
    assert [each["name"] for each in pods["agent-deployment-false"]["spec"]["initContainers"]] == ["migrate"]
    variables = next(each["data"] for each in of_kind("ConfigMap", objects) if "https_proxy" in each["data"])
    assert variables["https_proxy"] == "http://127.0.0.1:3128"


def test_a_policy_is_merged_into_the_configuration_of_the_sidecar(tmp_path: Path):
    """As the page on Kubernetes says: a component, so that it is built when the ConfigMap is there."""
    component = tmp_path / "policy"
    component.mkdir()
    (component / "policy.yaml").write_text("kind: EgressPolicy\n", encoding="utf-8")
    text = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8").partition("# policy/kustomization.yaml\n")[2]
    (component / "kustomization.yaml").write_text(text.partition("```")[0], encoding="utf-8")
    sidecar = os.path.relpath(KUSTOMIZE / "components" / "sidecar", tmp_path)
    objects = overlay(
        tmp_path,
        {"resources": ["deployment.yaml"], "components": [sidecar, "policy"]},
        deployment=workload("Deployment", labelled=True),
    )
    configuration = next(each for each in of_kind("ConfigMap", objects) if "gateway.yaml" in each["data"])
    assert configuration["data"].keys() == {"gateway.yaml", "policy.yaml"}
    assert configuration["metadata"]["name"] == "egressproxy"  # without a hash
