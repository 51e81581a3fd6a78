"""ExtensionRef filters: pipelines of processors, and policies for one rule; what cannot be resolved closes the rule."""

from __future__ import annotations

import json

import pytest

from egressproxy.config.reading.problems import ConfigError
from egressproxy.ir.backend import Protocol
from egressproxy.ir.policy import ExtensionIR
from egressproxy.ir.route import WeightedBackend
from tests.config.compile.kit import PLAIN, REVERSE, ROUTE, compiled, of_object, of_route, rule

HEADERS = "type: 'egressproxy.io/HeaderPolicy:v1', config: {request: {set: [{name: X-%s, value: '1'}]}}"
GUARD = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: guard, namespace: %s}
spec:
  destination: {type: Fqdn, fqdn: {hostname: guard.example}, ports: [{number: 443, tls: {mode: Simple}}]}
"""
REMOTE = "name: remote, backendRefs: [{group: egressproxy.io, kind: Backend, name: guard%s}]"


def pipeline(*processors: str) -> str:
    listed = "".join(f"\n  - {{{each}}}" for each in processors)
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: PayloadProcessingPipeline
metadata: {{name: pipe}}
spec:
  processors:{listed}
"""


def in_process(name: str, more: str = "") -> str:
    return f"name: {name}, phase: request-headers, {HEADERS % name}{more}"


def ref(kind: str = "PayloadProcessingPipeline", name: str = "pipe", group: str = "egressproxy.io") -> str:
    return f"{{type: ExtensionRef, extensionRef: {{group: {group}, kind: {kind}, name: {name}}}}}"


def naming(*filters: str) -> str:
    return ROUTE.replace("- backendRefs", f"- filters: [{', '.join(filters)}]\n    backendRefs")


def names(specs: tuple[ExtensionIR, ...]) -> list[str]:
    return [spec.name for spec in specs]


def test_processors_are_extensions_of_the_rule_in_the_order_of_the_list():
    before = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [X-A]}}"
    after = "{type: URLRewrite, urlRewrite: {hostname: b.example}}"
    listed = pipeline(in_process("z", ", timeout: 2s, failureMode: open"), in_process("a"))
    made = compiled(REVERSE, PLAIN, naming(before, ref(), after), listed)
    found = rule(made).extensions
    assert names(found) == ["RequestHeaderModifier", "z", "a", "URLRewrite"]
    first, second = found[1:3]
    assert (first.timeout_s, first.fail_open, first.source) == (2.0, True, "PayloadProcessingPipeline default/pipe")
    assert (second.timeout_s, second.fail_open, second.phase, second.level) == (5.0, False, "request-headers", 1)
    assert of_object(made, "PayloadProcessingPipeline", "default/pipe", "Accepted")[:2] == ("True", "Accepted")
    assert of_route(made, "Accepted")[0] == of_route(made, "ResolvedRefs")[0] == "True"


def test_a_remote_processor_is_asked_by_ext_proc_over_http_2():
    remote = (REMOTE % "") + ", timeout: 300ms, config: {processingMode: {requestBodyMode: BUFFERED}}"
    made = compiled(REVERSE, PLAIN, GUARD % "default", naming(ref()), pipeline(remote))
    (spec,) = rule(made).extensions
    assert (spec.type, spec.phase, spec.timeout_s) == ("egressproxy.io/ExternalProcessor:v1", "request-headers", 0.3)
    assert json.loads(spec.config)["processingMode"] == {"requestBodyMode": "BUFFERED"}
    ((_, callee),) = spec.calls
    assert isinstance(callee, WeightedBackend)
    assert callee.backend is not None
    assert (callee.backend.hostname, callee.backend.protocol) == ("guard.example", Protocol.GRPC)


def test_a_pipeline_on_a_backend_ref_runs_for_that_backend():
    route = ROUTE.replace("name: plain}", f"name: plain, filters: [{ref()}]}}")
    made = compiled(REVERSE, PLAIN, GUARD % "default", route, pipeline(in_process("a"), REMOTE % ""))
    found = rule(made).backends[0].extensions
    assert [(spec.name, spec.phase, spec.turn) for spec in found] == [
        ("a", "backend-request", -1), ("remote", "backend-request", -1),
    ]  # fmt: skip
    assert found[1].calls
    assert rule(made).extensions == ()


GRANT = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: guarded, namespace: guards}
spec:
  from: [{group: egressproxy.io, kind: PayloadProcessingPipeline, namespace: default}]
  to: [{group: egressproxy.io, kind: Backend}]
"""


@pytest.mark.parametrize("grants", [(GRANT,), ()])
def test_a_processor_of_another_namespace_needs_a_grant(grants: tuple[str, ...]):
    listed = pipeline(REMOTE % ", namespace: guards")
    made = compiled(REVERSE, PLAIN, GUARD % "guards", naming(ref()), listed, *grants)
    ((_, callee),) = rule(made).extensions[0].calls
    assert isinstance(callee, WeightedBackend)
    assert (callee.backend is not None) == bool(grants)
    status = of_object(made, "PayloadProcessingPipeline", "default/pipe", "ResolvedRefs")
    assert status[0] == str(bool(grants))
    if not grants:
        assert status[1] == "RefNotPermitted"
        assert "spec.processors[0].backendRefs[0]" in status[2]


@pytest.mark.parametrize("kind", ["PayloadProcessingPipeline", "EgressPolicy"])
@pytest.mark.parametrize("on_backend", [False, True])
def test_an_object_that_is_not_there_closes_the_rule(kind: str, on_backend: bool):
    missing = ref(kind, "nowhere")
    route = ROUTE.replace("name: plain}", f"name: plain, filters: [{missing}]}}") if on_backend else naming(missing)
    made = compiled(REVERSE, PLAIN, route)
    (backend,) = rule(made).backends
    assert backend.backend is None
    assert of_route(made, "Accepted")[:2] == ("False", "UnsupportedValue")
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "ExtensionRefNotFound")
    assert f"{kind} default/nowhere does not exist" in of_route(made, "ResolvedRefs")[2]


def test_another_kind_closes_the_rule():
    made = compiled(REVERSE, PLAIN, naming(ref("Thing", "one", "example.com")))
    assert rule(made).backends[0].backend is None


@pytest.mark.parametrize(
    ("kind", "group", "remedy"),
    [
        ("PayloadProcessorPipeline", "egressproxy.io", "did you mean PayloadProcessingPipeline?"),
        ("PayloadProcessingPipeline", "gateway.networking.k8s.io", "write group: egressproxy.io"),
        ("FilterType", "egressproxy.io", "and kind: PayloadProcessingPipeline or EgressPolicy"),
    ],
)
def test_another_kind_is_told_with_what_may_be_named(kind: str, group: str, remedy: str):
    made = compiled(REVERSE, PLAIN, naming(ref(kind, "pipe", group)), pipeline(in_process("a")))
    assert remedy in of_route(made, "Accepted")[2]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_processor_of_an_unknown_type_closes_the_rule_unless_it_is_open(is_open: bool):
    unknown = "name: u, type: 'acme.example/Thing:v1'" + (", failureMode: open" if is_open else "")
    made = compiled(REVERSE, PLAIN, naming(ref()), pipeline(unknown, in_process("a")))
    assert (rule(made).backends[0].backend is not None) == is_open
    degraded = of_object(made, "PayloadProcessingPipeline", "default/pipe", "Degraded")
    assert degraded[:2] == ("True", "UnsupportedExtensionType")
    assert "spec.processors[0].type" in degraded[2]


@pytest.mark.parametrize(("processor", "field"), [
    ("name: a, phase: request-headers, type: 'egressproxy.io/HeaderPolicy:v1', config: {no: 1}", "[0].config.no"),
    ("name: a, type: 'egressproxy.io/HeaderPolicy:v1'", "processors[0].phase"),
    ((REMOTE % "") + ", config: {processingMode: {requestBodyMode: ALL}}", "processors[0].config.processingMode"),
    ((REMOTE % "") + ", config: {backendRefs: []}", "config.backendRefs stands beside backendRefs"),
])  # fmt: skip
def test_what_is_wrong_in_a_pipeline_is_a_load_error_whether_or_not_a_route_names_it(processor: str, field: str):
    with pytest.raises(ConfigError) as caught:
        compiled(REVERSE, PLAIN, ROUTE, pipeline(processor))
    assert any(field in str(problem) for problem in caught.value.problems)


def test_two_processors_do_not_have_one_name():
    with pytest.raises(ConfigError, match="name a stands more than once in processors"):
        compiled(REVERSE, PLAIN, ROUTE, pipeline(in_process("a"), in_process("b"), in_process("a")))


@pytest.mark.parametrize(("processor", "remedy"), [
    ("name: a, phase: request-headers", "add type or backendRefs"),
    (f"{REMOTE % ''}, type: 'egressproxy.io/HeaderPolicy:v1'", "keep one of them"),
])  # fmt: skip
def test_a_processor_without_or_with_two_things_that_run_it_is_told_what_to_do(processor: str, remedy: str):
    with pytest.raises(ConfigError) as caught:
        compiled(REVERSE, PLAIN, ROUTE, pipeline(processor))
    assert [problem.remedy for problem in caught.value.problems] == [remedy]


POLICY = """
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: strict}
spec:
  targetRefs: []
  traffic: {timeouts: {connect: 7s}}
  extensions:
  - {name: marks, phase: request-headers, %s}
"""


def test_a_policy_that_a_filter_names_holds_for_the_rule_alone():
    two = naming(ref("EgressPolicy", "strict")) + (
        "  - matches: [{path: {value: /other}}]\n"
        "    backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]\n"
    )
    made = compiled(REVERSE, PLAIN, two, POLICY % (HEADERS % "A"))
    assert names(rule(made, 0).extensions) == ["marks"]
    assert rule(made, 0).policy.timeouts.connect_s == 7.0
    assert rule(made, 1).extensions == ()
    assert rule(made, 1).policy.timeouts.connect_s != 7.0
    (key,) = (key for key in made.statuses if key[1] == "EgressPolicy")
    (ancestor,) = made.statuses[key]["ancestors"]
    assert (ancestor["ancestorRef"]["kind"], ancestor["ancestorRef"]["name"]) == ("HTTPRoute", "route")
    assert ancestor["conditions"][0]["status"] == "True"


def test_a_policy_that_holds_there_already_does_not_hold_twice():
    policy = POLICY.replace(
        "targetRefs: []", "targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: route}]"
    )
    made = compiled(REVERSE, PLAIN, naming(ref("EgressPolicy", "strict")), policy % (HEADERS % "A"))
    assert names(rule(made).extensions) == ["marks"]


def test_a_policy_that_cannot_be_enforced_closes_the_rule_that_names_it():
    unknown = "type: 'acme.example/Thing:v1'"
    made = compiled(REVERSE, PLAIN, naming(ref("EgressPolicy", "strict")), POLICY % unknown)
    assert rule(made).backends[0].backend is None


def test_a_policy_is_not_for_one_backend_ref():
    route = ROUTE.replace("name: plain}", f"name: plain, filters: [{ref('EgressPolicy', 'strict')}]}}")
    made = compiled(REVERSE, PLAIN, route, POLICY % (HEADERS % "A"))
    assert rule(made).backends[0].backend is None
    assert "targetRefs" in of_route(made, "Accepted")[2]
