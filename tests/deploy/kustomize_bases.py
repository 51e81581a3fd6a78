"""The kustomize bases, written from what the chart renders: `make kustomize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.tools import KUSTOMIZE, Object, one, template

_HEAD: Final = "# Written by `make kustomize` from deploy/helm/egressproxy: change the chart, not this file.\n"
#: What says that helm has made an object.
_OF_HELM: Final = ("helm.sh/chart", "app.kubernetes.io/managed-by")
#: Of the component; the service account, and the namespace, are those of the workload.
_SIDECAR: Final = ("--set", "mode=sidecar", "--set", "sidecar.example.kind=Deployment")


def bases() -> dict[Path, str]:
    """The text of each file that is written, by its path."""
    standalone = [_plain(each) for each in template()]
    daemonset = [_plain(each) for each in template("--set", "mode=daemonset")]
    sidecar = [_plain(each) for each in template(*_SIDECAR, namespace="default")]
    for each in sidecar:
        del each["metadata"]["namespace"]  # a component is for whatever namespace uses it
    return {
        KUSTOMIZE / "base" / "standalone" / "egressproxy.yaml": _text(standalone),
        KUSTOMIZE / "base" / "daemonset" / "egressproxy.yaml": _text(daemonset),
        KUSTOMIZE / "components" / "sidecar" / "egressproxy.yaml": _text(
            [each for each in sidecar if each["kind"] == "ConfigMap"]
        ),
        KUSTOMIZE / "components" / "sidecar" / "sidecar.yaml": _text([sidecar_patch(one("Deployment", sidecar))]),
    }


def sidecar_patch(example: Object) -> Object:
    """What a workload gets to have the sidecar of this one: kustomize takes kind and name from its target."""
    pod = example["spec"]["template"]["spec"]
    labels = {"egressproxy.io/sidecar": "true"}
    added = {"initContainers": pod["initContainers"], "volumes": pod["volumes"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "any"},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": added}},
    }


def _plain(value: Any) -> Any:
    """Without the labels of helm. Namespaces stay: by them kustomize finds the service account of a binding."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if name not in _OF_HELM}
    return value


class _Dumper(yaml.SafeDumper):
    """Text of several lines stays readable."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)


def _text(objects: list[Object]) -> str:
    return _HEAD + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=200)


if __name__ == "__main__":
    for path, text in bases().items():
        path.write_text(text, encoding="utf-8")
        print(path)
