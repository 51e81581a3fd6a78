"""What the process that loads makes before it is asked; and what it says of what is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import read_all
from egressproxy.config.reading.problems import ConfigError, Severity
from egressproxy.filters.builtin import BUILTIN
from egressproxy.model.secret import SecretSource
from egressproxy.processes.loader.compilation import compiled, examined
from tests.support.waiting import WAIT_S

EXAMPLES = Path(__file__).parents[3] / "config"
PROGRAM = """
import os
import sys
from pathlib import Path
import egressproxy.processes.loader.answer
import egressproxy.kubeapi.write.answer
from egressproxy.config.compile.extensions.config_schema import ADAPTERS
from egressproxy.config.resources.kinds import KINDS
from egressproxy.processes.loader.compilation import preparations
from egressproxy.processes.loader.request import LoadRequest, write_request
from egressproxy.processes.loader.result import read_answer

for _ in preparations():
    pass
modules, made = set(sys.modules), len(ADAPTERS)
assert all(kind.__pydantic_complete__ for kind in KINDS)
for example in map(Path, sys.argv[1:]):
    copy = os.fork()
    if not copy:
        request = write_request(LoadRequest((example,), ("127.0.0.1",)))
        read_answer(egressproxy.processes.loader.answer.answer(request))
        assert len(ADAPTERS) == made
        print(example.stem, *sorted(set(sys.modules) - modules), flush=True)
        os._exit(0)
    os.waitpid(copy, 0)
"""


def test_a_loading_imports_no_type_of_filter_that_is_not_used():
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from egressproxy.processes.loader.answer import answer\n"
        "from egressproxy.processes.loader.request import LoadRequest, write_request\n"
        "answer(write_request(LoadRequest((Path(sys.argv[1]),), ('127.0.0.1',))))\n"
        "print(*sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(EXAMPLES / "minimal.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    modules = {where.partition(":")[0].removeprefix("egressproxy.filters.") for where in BUILTIN.values()}
    imported = {name.removeprefix("egressproxy.filters.") for name in done.stdout.split()}
    assert "base" in imported
    assert modules.isdisjoint(imported)


def test_a_loading_finds_all_that_it_needs_ready():
    """What it would import or make itself, each loading would import and make anew."""
    examples = sorted(EXAMPLES.glob("*.yaml"))
    done = subprocess.run([sys.executable, "-c", PROGRAM, *examples], capture_output=True, text=True, timeout=WAIT_S)
    # Few configurations have conditions in CEL, and a process without one does not load their package.
    wanted = [[path.stem, *(["cel.cel"] if path.stem == "access-policy" else [])] for path in examples]
    assert [line.split() for line in done.stdout.splitlines()] == wanted, done.stderr


#: One object of most kinds, each of which others need; and a route to what is not there.
WHOLE = """apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: mine}
spec: {controllerName: egressproxy.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: infra}
spec:
  gatewayClassName: mine
  allowedListeners: {namespaces: {from: All}}
  listeners:
  - name: forward
    port: 3128
    protocol: egressproxy.io/forward-proxy
    allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: red}}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: agents, labels: {team: red}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more, namespace: agents}
spec:
  parentRef: {name: gw, namespace: infra}
  listeners: [{name: plain, port: 8080, protocol: HTTP}]
---
apiVersion: v1
kind: Service
metadata: {name: models, namespace: shared}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: models-1, namespace: shared, labels: {kubernetes.io/service-name: models}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1]}]
ports: [{port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: g, namespace: shared}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: agents}]
  to: [{group: "", kind: Service}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: ca, namespace: shared}
data: {schema: "{}"}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: agents}
spec:
  parentRefs: [{name: gw, namespace: infra}, {kind: ListenerSet, name: more}]
  hostnames: [models.test]
  rules: [{name: first, backendRefs: [{name: models, namespace: shared, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: dyn, namespace: agents}
spec:
  parentRefs: [{name: gw, namespace: infra}]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: dyn}]}]
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: dyn, namespace: agents}
spec: {destination: {type: Dynamic}}
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: corp, namespace: infra}
spec: {destination: {type: Fqdn, fqdn: {hostname: corp.test}, ports: [{number: 80, tls: {mode: None}}]}}
---
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: wide, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  destinations: {allow: [{hostnames: [a.test]}]}
---
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: up, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  parent: {name: corp}
---
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: filt, namespace: agents}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: r, sectionName: first}]
  extensions:
  - {name: own, type: acme.test/Own:v1, phase: request-headers}
---
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: agents}
stringData: {token: abcdefgh12345678}
---
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: inj, namespace: agents}
spec:
  targetRefs: [{group: egressproxy.io, kind: Backend, name: dyn}]
  extensions:
  - name: key
    type: egressproxy.io/CredentialInjector:v1
    phase: backend-request
    config: {secretRef: {name: key}, allowPlaintext: true}
---
apiVersion: egressproxy.io/v1alpha1
kind: FilterType
metadata: {name: own}
spec:
  type: acme.test/Own:v1
  summary: x
  phases: [request-headers]
  python: {path: own.py}
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: any, namespace: agents}
spec:
  destination:
    type: Failover
    failover:
      endpoints:
      - {backendRef: {group: egressproxy.io, kind: Backend, name: one}}
      - {backendRef: {group: egressproxy.io, kind: Backend, name: two}}
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: one, namespace: agents}
spec: {destination: {type: Fqdn, fqdn: {hostname: one.test}, ports: [{number: 443, tls: {mode: Simple}}]}}
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: two, namespace: agents}
spec: {destination: {type: Fqdn, fqdn: {hostname: two.test}, ports: [{number: 443, tls: {mode: Simple}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: chat, namespace: agents}
spec:
  parentRefs: [{name: gw, namespace: infra}]
  hostnames: [chat.test]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: any}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: lost, namespace: agents}
spec:
  parentRefs: [{name: gw, namespace: infra}]
  hostnames: [lost.test]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: nobody}]}]
"""
OBJECTS = WHOLE.split("---\n")
#: Of these the schema is looser: what is wrong with them is in their metadata.
_LOOSE = ("kind: Secret", "kind: ConfigMap", "kind: Namespace", "kind: Service", "kind: EndpointSlice")


def told(folder: Path, objects: list[str]) -> tuple[list[str], set[tuple[str, str]]]:
    """What keeps these objects from being served, and what of them is not served, by object and code."""
    file = folder / "all.yaml"
    file.write_text("---\n".join(objects))
    resources = read_all((file,))
    made = examined(resources, ("127.0.0.1",))
    findings = all_warnings(resources, made)
    unserved = {(each.object, each.code) for each in findings if each.severity is Severity.UNSERVED}
    return [f"{each.object}: {each.field_path}" for each in made.problems], unserved


def named(manifest: str) -> str:
    made = yaml.safe_load(manifest)
    return f"{made['kind']} {made['metadata']['name']}"


@pytest.mark.parametrize("broken", range(len(OBJECTS)), ids=map(named, OBJECTS))
def test_of_a_broken_object_nothing_else_is_told_than_what_is_wrong_with_it(tmp_path: Path, broken: int):
    problems, unserved = told(tmp_path, OBJECTS)
    assert problems == []
    lost = ("HTTPRoute agents/lost", "BackendNotFound")
    assert lost in unserved
    made = yaml.safe_load(OBJECTS[broken])
    part = made["metadata"] if any(kind in OBJECTS[broken] for kind in _LOOSE) else made["spec"]
    part["labels" if part is made["metadata"] else "wrong"] = 7
    problems, of_rest = told(tmp_path, [*OBJECTS[:broken], yaml.safe_dump(made), *OBJECTS[broken + 1 :]])
    assert len(problems) == 1
    assert made["metadata"]["name"] in problems[0]
    assert of_rest <= unserved
    is_of_it = made["kind"] in ("Gateway", "GatewayClass") or made["metadata"]["name"] == "lost"
    assert is_of_it or lost in of_rest


def test_what_is_wrong_in_any_way_is_never_given_out(tmp_path: Path):
    option = next(each for each in OBJECTS if "CredentialInjector" in each).replace("allowPlaintext", "allowPlain")
    field = OBJECTS[0].replace("controllerName", "controlerName")
    for objects in ([*OBJECTS, field], [*OBJECTS, option.replace("name: inj", "name: other")], [field, option]):
        (tmp_path / "all.yaml").write_text("---\n".join(objects))
        with pytest.raises(ConfigError):
            compiled(read_all((tmp_path / "all.yaml",)), ("127.0.0.1",))


@pytest.mark.parametrize("is_trust_bundle", [False, True])
def test_an_option_that_cannot_be_read_may_be_what_others_miss(tmp_path: Path, is_trust_bundle: bool):
    source = SecretSource("agents", "gone", path=tmp_path / "gone", is_trust_bundle=is_trust_bundle)
    file = tmp_path / "all.yaml"
    file.write_text("---\n".join(OBJECTS))
    resources = read_all((file, source))
    made = examined(resources, ("127.0.0.1",))
    assert len(made.problems) == 1
    assert all_warnings(resources, made) == []
