"""The real helm and kubectl that `make helm` installs, and what they make of deploy/."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "egressproxy"
KUSTOMIZE = ROOT / "deploy" / "kustomize"
#: Every example of values; None: the chart's own.
EXAMPLES: tuple[Path | None, ...] = (None, *sorted((CHART / "ci").glob("*.yaml")))
VENV = ROOT / ".cache" / "helm-venv"
_HERE = f"{VENV / 'bin'}:{os.environ.get('PATH', '')}"

Object = dict[str, Any]


def name_of(example: Path | None) -> str:
    return "defaults" if example is None else example.stem


def find(program: str) -> str:
    """Its path. A test that needs it is skipped without it, and fails in a pipeline (EGRESSPROXY_CLIENTS=required)."""
    found = shutil.which(program, path=_HERE)
    if found is not None:
        return found
    message = f"{program} is missing: make helm"
    if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
        pytest.fail(message)
    pytest.skip(message)


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """What helm says, whether or not it is content. It keeps nothing of the user who runs the tests."""
    environment = {"PATH": _HERE, "HOME": "/nonexistent", "HELM_NO_PLUGINS": "1"}
    return subprocess.run(
        [find("helm"), *words], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def template(
    *words: str, values: Path | None = None, namespace: str = "egressproxy-system", chart: Path = CHART
) -> list[Object]:
    """The objects that `helm template` renders for a release called egressproxy; AssertionError where it refuses."""
    given = ["--values", str(values)] if values is not None else []
    done = helm("template", "egressproxy", str(chart), "--namespace", namespace, *given, *words)
    assert done.returncode == 0, done.stderr
    return objects_in(done.stdout)


@cache
def rendered(example: Path | None) -> list[Object]:
    """The same for an example of values, once. Whoever changes an object copies it first."""
    return template(values=example)


def schema_of(of: Object, version: str) -> jsonschema.Draft202012Validator:
    """What Kubernetes of a version asks of the kind of an object, and that it has no field beside those."""
    folders = sorted(VENV.glob("lib/*/site-packages/kubernetes_validate/kubernetes-json-schema"))
    if not folders:
        find("kubernetes-validate")
    group, _, of_group = of["apiVersion"].rpartition("/")
    name = "-".join(filter(None, (of["kind"].lower(), group.partition(".")[0], of_group)))
    return _schema(folders[-1] / f"v{version}.0-local-strict" / f"{name}.json")


@cache
def _schema(path: Path) -> jsonschema.Draft202012Validator:
    schema = json.loads(path.read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(schema, registry=_definitions(path.with_name("_definitions.json")))


@cache
def _definitions(path: Path) -> referencing.Registry[Any]:
    definitions = referencing.Resource[Any].from_contents(json.loads(path.read_text(encoding="utf-8")))
    return definitions @ referencing.Registry[Any]()


def kustomize(folder: Path) -> list[Object]:
    """The objects that `kubectl kustomize` builds; AssertionError where it refuses."""
    done = subprocess.run(
        [find("kubectl"), "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return objects_in(done.stdout)


def objects_in(text: str) -> list[Object]:
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each is not None]


def of_kind(kind: str, objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def one(kind: str, objects: list[Object]) -> Object:
    (found,) = of_kind(kind, objects)
    return found


def pod_templates(objects: list[Object]) -> list[Object]:
    """The Pod templates of all workloads."""
    return [each["spec"]["template"] for each in objects if each["kind"] in ("Deployment", "DaemonSet", "Job")]


def gateway_container(template: Object) -> Object:
    spec = template["spec"]
    (found,) = [
        each for each in [*spec.get("initContainers", ()), *spec["containers"]] if each["name"] == "egressproxy"
    ]
    return found


def json_of(value: object) -> str:
    """The value as JSON that compares well."""
    return json.dumps(value, indent=1, sort_keys=True)
