"""The real helm and kubectl that `make helm` installs, and what they make of deploy/."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "egressproxy"
KUSTOMIZE = ROOT / "deploy" / "kustomize"
#: Every example of values; None: the chart's own.
EXAMPLES: tuple[Path | None, ...] = (None, *sorted((CHART / "ci").glob("*.yaml")))
_HERE = f"{ROOT / '.cache' / 'helm-venv' / 'bin'}:{os.environ.get('PATH', '')}"

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
    *words: str, values: Path | None = None, namespace: str = "egress-system", chart: Path = CHART
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
