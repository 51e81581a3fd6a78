from __future__ import annotations

import json

import pytest

from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import ResourceSet, load, load_text
from egressproxy.config.reading.problems import ConfigError
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain, run
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.model.exchange import Exchange
from tests.config.compile.kit import PLAIN, REVERSE, ROUTE, compiled, listener, of_object, of_policy, policy, rule
from tests.support.compiling import compile_valid

TYPE = "acme.example.com/Stamp:v1"
SCHEMA = "{type: object, additionalProperties: false, required: [team], properties: {team: {type: string}}}"
FILE = (
    "from egressproxy.filters import Filter\n"
    "class Stamp(Filter):\n"
    "    def __init__(self, context): self.config = context.config\n"
    "    def request_headers(self, x): x.note('team', self.config['team'])\n"
)


def filter_type(more: str = "", name: str = "stamp", meta: str = "", source: str = "python: {path: stamp.py}") -> str:
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: FilterType
metadata: {{name: {name}{meta}}}
spec:
  type: {TYPE}
  phases: [request-headers, backend-request]
  {source}
  {more or f"configSchema: {{inline: {SCHEMA}}}"}
"""


def used(more: str = "config: {team: research}", type_name: str = TYPE) -> str:
    return policy(f"extensions: [{{name: mine, type: '{type_name}', phase: request-headers, {more}}}]")


def problems(*manifests: str) -> list[tuple[int, str, str, str]]:
    with pytest.raises(ConfigError) as caught:
        compiled(REVERSE, PLAIN, ROUTE, *manifests)
    return [(each.line, each.field_path, each.message, each.remedy) for each in caught.value.problems]


def of_type(made: Compiled, condition: str = "Accepted", name: str = "stamp") -> tuple[str, str, str]:
    return of_object(made, "FilterType", name, condition)


def test_a_type_of_a_file_runs_with_the_config_that_its_schema_admits(tmp_path):
    (tmp_path / "stamp.py").write_text(FILE)
    (tmp_path / "all.yaml").write_text("\n---\n".join([REVERSE, PLAIN, ROUTE, filter_type(), used()]))
    made = compile_valid(load([tmp_path]), Catalog(), Defaults())
    assert of_type(made)[:2] == ("True", "Accepted")
    (spec,) = rule(made).extensions
    assert (spec.type, spec.folder) == (TYPE, str(tmp_path))
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    run(compile_chain([spec], FilterInstances(Catalog()).place).request_headers, x)
    assert x.notes == {"team": "research"}


def test_the_file_is_looked_for_beside_the_filter_type_and_not_beside_what_uses_it(tmp_path):
    (tmp_path / "types").mkdir()
    (tmp_path / "stamp.py").write_text("raise SystemExit")
    (tmp_path / "types" / "stamp.py").write_text(FILE)
    (tmp_path / "types" / "type.yaml").write_text(filter_type())
    (tmp_path / "all.yaml").write_text("\n---\n".join([REVERSE, PLAIN, ROUTE, used()]))
    made = compile_valid(load([tmp_path, tmp_path / "types"]), Catalog(), Defaults())
    (spec,) = rule(made).extensions
    assert spec.folder == str(tmp_path / "types")
    FilterInstances(Catalog()).place(spec)


def test_a_config_that_its_schema_does_not_admit_is_a_load_error_with_line_and_field():
    ((line, field, message, remedy),) = problems(filter_type(), used("config: {teem: research, team: a}"))
    assert line > 0
    assert (field, message) == ("spec.extensions[0].config.teem", "unknown field")
    assert remedy == "did you mean team?"
    ((_, field, message, _),) = problems(filter_type(), used("config: {}"))
    assert (field, message) == ("spec.extensions[0].config.team", "team is missing")


def test_a_phase_that_the_type_does_not_name_closes_what_asks_for_it():
    made = compiled(REVERSE, PLAIN, ROUTE, filter_type(), used().replace("phase: request-headers", "phase: connect"))
    status, reason, message = of_policy(made, "Degraded")
    assert (status, reason) == ("True", "UnsupportedExtensionType")
    assert f"spec.extensions[0].phase: {TYPE} cannot run in phase connect" in message
    assert rule(made).backends[0].backend is None


def test_a_type_without_a_schema_takes_no_config():
    source = filter_type(more="summary: A stamp.")
    assert listener(compiled(REVERSE, PLAIN, ROUTE, source, used("config: {}"))) is not None
    ((_, field, message, _),) = problems(source, used())
    assert (field, message) == ("spec.extensions[0].config", f"{TYPE} takes no config")


def test_the_schema_may_stand_in_a_config_map():
    in_map = "configSchema: {configMapRef: {name: schemas, namespace: types, key: stamp.json}}"
    config_map = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: schemas, namespace: types}}
data:
  stamp.json: '{json.dumps({"required": ["team"]})}'
  wrong.json: '{{'
"""
    made = compiled(REVERSE, PLAIN, ROUTE, config_map, filter_type(in_map), used())
    assert of_type(made, "ResolvedRefs")[0] == "True"
    ((_, field, _, _),) = problems(config_map, filter_type(in_map), used("config: {}"))
    assert field == "spec.extensions[0].config.team"
    made = compiled(REVERSE, PLAIN, ROUTE, config_map, filter_type(in_map.replace("stamp.json", "none.json")), used())
    assert of_type(made, "ResolvedRefs")[:2] == ("False", "NotFound")
    assert of_type(made)[:2] == ("False", "InvalidSchema")
    made = compiled(REVERSE, PLAIN, ROUTE, config_map, filter_type(in_map.replace("stamp.json", "wrong.json")), used())
    assert of_type(made)[:2] == ("False", "InvalidSchema")
    assert of_policy(made, "Degraded")[1] == "UnsupportedExtensionType"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (filter_type().replace(TYPE, "filters.egressproxy.io/Stamp:v1"), "ReservedType"),
        (filter_type().replace(TYPE, "egressproxy.io/CredentialInjector:v1"), "ReservedType"),
        (filter_type().replace(TYPE, "gateway.networking.k8s.io/QoSController:v1"), "ReservedType"),
        (filter_type("configSchema: {inline: {type: objekt}}"), "InvalidSchema"),
        (filter_type("configSchema: {inline: {properties: {a: {pattern: '(?=a)'}}}}"), "InvalidSchema"),
    ],
)
def test_what_is_not_accepted_refuses_no_set_and_closes_what_names_it(source, reason):
    made = compiled(REVERSE, PLAIN, ROUTE, source, used())
    status, told, message = of_type(made)
    assert (status, told) == ("False", reason)
    assert message.endswith("what names the type stays closed")
    if TYPE in source:
        degraded = of_policy(made, "Degraded")
        assert degraded[:2] == ("True", "UnsupportedExtensionType")
        assert "FilterType stamp is not accepted" in degraded[2]
    assert not any(spec.is_known for spec in rule(made).extensions)


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (filter_type().replace(TYPE, "egressproxy.io/Stamp:v1"), "type: egressproxy.io"),
        (filter_type("configSchema: {inline: {type: objekt}}"), "configSchema:"),
        (filter_type(source="python: {path: stamp.py, settings: {no: 1}}"), "python:"),
    ],
)
def test_what_is_not_accepted_is_told_at_the_line_of_its_field(tmp_path, source, written):
    (tmp_path / "type.yaml").write_text(source)
    read = load([tmp_path])
    found = [
        each for each in all_warnings(read, compile_valid(read, Catalog(), Defaults())) if "Accepted" in each.message
    ]
    lines = [number for number, line in enumerate(source.splitlines(), 1) if line.strip().startswith(written)]
    assert [each.line for each in found] == lines


def test_a_file_that_is_not_there_is_told_as_that_of_a_filter_type(tmp_path):
    (tmp_path / "all.yaml").write_text("\n---\n".join([REVERSE, PLAIN, ROUTE, filter_type(), used()]))
    (spec,) = rule(compile_valid(load([tmp_path]), Catalog(), Defaults())).extensions
    with pytest.raises(FilterBuildError, match=r"which a FilterType makes known\): stamp.py: there is no such file"):
        FilterInstances(Catalog()).place(spec)


def test_a_built_in_type_is_not_redefined():
    source = filter_type().replace(TYPE, "egressproxy.io/HeaderPolicy:v1")
    made = compiled(REVERSE, PLAIN, ROUTE, source, used("config: {}", "egressproxy.io/HeaderPolicy:v1"))
    (spec,) = rule(made).extensions
    assert spec.implementation == ""


def test_of_two_definitions_of_one_type_the_older_wins_and_status_tells():
    older = filter_type(name="older", meta=", creationTimestamp: '2026-01-01T00:00:00Z'", source="python: {path: a.py}")
    newer = filter_type(name="newer", meta=", creationTimestamp: '2026-02-01T00:00:00Z'", source="python: {path: b.py}")
    made = compiled(REVERSE, PLAIN, ROUTE, newer, older, used())
    (spec,) = rule(made).extensions
    assert json.loads(spec.config)["path"] == "a.py"
    assert of_type(made, name="older")[0] == "True"
    status, reason, message = of_type(made, name="newer")
    assert (status, reason) == ("False", "Conflicted")
    assert "FilterType older makes acme.example.com/Stamp:v1 known" in message
    assert message.endswith("this one has no effect")


def both(files: str, api: str) -> Compiled:
    read = (*load_text(files, "config.yaml").objects, *load_text(api, "state.yaml", is_from_api=True).objects)
    return compile_valid(ResourceSet(read), Catalog(), Defaults())


def test_no_object_of_the_api_names_a_file():
    made = both("\n---\n".join([REVERSE, PLAIN, ROUTE, used()]), filter_type())
    assert of_type(made)[:2] == ("False", "NotPermitted")
    assert of_policy(made, "Degraded")[1] == "UnsupportedExtensionType"


def test_a_definition_of_the_api_does_not_take_the_place_of_a_files():
    older = filter_type(name="older", meta=", creationTimestamp: '2020-01-01T00:00:00Z'", more="summary: None.")
    made = both("\n---\n".join([REVERSE, PLAIN, ROUTE, filter_type(), used()]), older)
    assert of_type(made)[0] == "True"
    assert of_type(made, name="older")[0] == "False"


def test_an_object_of_the_api_may_have_a_type_that_a_file_makes_known():
    made = both("\n---\n".join([REVERSE, PLAIN, ROUTE, filter_type()]), used())
    (spec,) = rule(made).extensions
    assert (spec.type, spec.is_known) == (TYPE, True)


CLASS = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: egressproxy}
spec: {controllerName: egressproxy.io/gateway-controller}
"""


def test_the_gateway_class_points_to_the_catalogue_with_the_support_level_of_each_type():
    made = compiled(REVERSE, PLAIN, ROUTE, CLASS, filter_type())
    status, reason, message = of_object(made, "GatewayClass", "egressproxy", "egressproxy.io/FilterCatalog")
    assert (status, reason) == ("True", "Published")
    assert message.startswith("ConfigMap egressproxy-system/egressproxy-filter-catalog ")
    levels = dict(each.split(": ", 1) for each in message.partition(". ")[2].split("; "))
    assert list(levels) == ["core", "extended", "implementation-specific"]
    assert "egressproxy.io/CredentialInjector:v1" in levels["core"].split(", ")
    assert TYPE in levels["implementation-specific"].split(", ")
    assert set(", ".join(levels.values()).split(", ")) == {*Catalog().names(), TYPE}
    assert made.filter_types[TYPE]["phases"] == ["request-headers", "backend-request"]


def test_nobody_else_writes_the_catalogue():
    mine = (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: egressproxy-filter-catalog, namespace: egressproxy-system}"
    )
    ((_, field, message, _),) = problems(mine)
    assert (field, message) == (
        "metadata.name",
        "the catalogue of filter types has this name: it is made by the gateway",
    )


SERVICE = "{group: egressproxy.io, kind: Backend, name: plain}"


def processor(refs: str = SERVICE, more: str = "", protocol: str = "ExtProc") -> str:
    return filter_type(source=f"processor: {{protocol: {protocol}, backendRefs: [{refs}]{more}}}")


def test_a_processor_is_asked_with_the_config_in_a_field_of_each_call():
    settings = ", settings: {processingMode: {requestBodyMode: BUFFERED}, grpcInitialMetadata: [{key: x-a, value: b}]}"
    made = compiled(REVERSE, PLAIN, ROUTE, processor(more=settings), used("config: {team: 'rés'}"))
    assert of_type(made)[:2] == ("True", "Accepted")
    (spec,) = rule(made).extensions
    assert (spec.type, spec.implementation) == (TYPE, "egressproxy.io/ExternalProcessor:v1")
    config = json.loads(spec.config)
    assert config["processingMode"] == {"requestBodyMode": "BUFFERED"}
    fields = {each["key"]: each["value"] for each in config["grpcInitialMetadata"]}
    assert fields == {
        "x-a": "b",
        "x-egressproxy-filter-type": TYPE,
        "x-egressproxy-filter-config": '{"team":"r\\u00e9s"}',
    }
    ((label, callee),) = spec.calls
    assert label == "Backend default/plain"
    assert callee.error == ""
    FilterInstances(Catalog()).place(spec)


ALL_PHASES = "[request-body, response-headers, backend-response, response-body]"


@pytest.mark.parametrize(
    ("phase", "on_policy", "on_backend", "sent", "mode"),
    [
        ("request-body", ("request-headers", 0), ("backend-request", -1), "request-body",
         {"responseHeaderMode": "SKIP", "requestBodyMode": "BUFFERED"}),
        ("response-headers", ("request-headers", 0), ("backend-request", 0), "response-headers",
         {"requestHeaderMode": "SKIP"}),
        ("backend-response", ("backend-request", 0), ("backend-request", 0), "response-headers",
         {"requestHeaderMode": "SKIP"}),
        ("response-body", ("request-headers", 0), ("backend-request", 0), "response-body",
         {"requestHeaderMode": "SKIP", "responseBodyMode": "BUFFERED"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("protocol", ["ExtProc", "Webhook"])
def test_a_processor_may_be_placed_where_a_filter_in_python_may(
    protocol: str, phase: str, on_policy: tuple[str, int], on_backend: tuple[str, int], sent: str, mode: dict[str, str]
):
    source = processor(protocol=protocol).replace("[request-headers, backend-request]", ALL_PHASES)
    extension = f"extensions: [{{name: mine, type: '{TYPE}', phase: {phase}, config: {{team: a}}}}]"
    of_rule = compiled(REVERSE, PLAIN, ROUTE, source, policy(extension))
    of_backend = compiled(REVERSE, f"{PLAIN}  {extension}\n", ROUTE, source)
    assert of_type(of_rule)[0] == "True"
    (first,), (second,) = rule(of_rule).extensions, rule(of_backend).backends[0].extensions
    for spec, placed in ((first, on_policy), (second, on_backend)):
        assert (spec.phase, spec.turn) == placed
        config = json.loads(spec.config)
        assert (config.get("send"), config.get("processingMode")) == (
            ([sent], None) if protocol == "Webhook" else (None, mode)
        )
        FilterInstances(Catalog()).place(spec)


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ("processingMode: {requestBodyMode: STREAMED}", {"responseHeaderMode": "SKIP", "requestBodyMode": "STREAMED"}),
        ("observabilityMode: true", {"responseHeaderMode": "SKIP", "requestBodyMode": "STREAMED"}),
    ],
)
def test_what_the_settings_of_a_type_say_is_sent_goes_first(settings: str, mode: dict[str, str]):
    source = processor(more=f", settings: {{{settings}}}").replace("backend-request]", "request-body]")
    made = compiled(REVERSE, PLAIN, ROUTE, source, used().replace("phase: request-headers", "phase: request-body"))
    (spec,) = rule(made).extensions
    assert json.loads(spec.config)["processingMode"] == mode
    FilterInstances(Catalog()).place(spec)


def test_what_uses_a_processor_needs_no_grant_since_the_filter_type_names_it():
    there = PLAIN.replace("metadata: {name: plain}", "metadata: {name: far, namespace: processors}")
    ref = "{group: egressproxy.io, kind: Backend, name: far, namespace: processors}"
    made = compiled(REVERSE, PLAIN, ROUTE, there, processor(ref), used())
    ((_, callee),) = rule(made).extensions[0].calls
    assert callee.error == ""
    assert of_policy(made, "ResolvedRefs")[0] != "False"


def test_a_processor_that_is_not_there_is_told_where_it_is_named():
    made = compiled(REVERSE, PLAIN, ROUTE, processor(SERVICE.replace("plain", "plane")), used())
    status, _, message = of_type(made, "ResolvedRefs")
    assert status == "False"
    assert "default/plane does not exist" in message
    ((_, callee),) = rule(made).extensions[0].calls
    assert callee.error


def test_what_is_in_another_namespace_needs_a_namespace_in_the_reference_and_no_grant():
    elsewhere = PLAIN.replace("{name: plain}", "{name: plain, namespace: tools}")
    backend = compiled(
        REVERSE, elsewhere, ROUTE, processor("{group: egressproxy.io, kind: Backend, name: plain}"), used()
    )
    schema = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s, namespace: tools}\ndata: {schema.json: '{}'}"
    named = filter_type("configSchema: {configMapRef: {name: s}}")
    config_map = compiled(REVERSE, schema, named)
    for made, target in ((backend, "plain"), (config_map, "s")):
        message = of_type(made, "ResolvedRefs")[2]
        assert f"(tools/{target} is in another namespace: add namespace to the reference)" in message
        assert "ReferenceGrant" not in message


@pytest.mark.parametrize(
    ("source", "reason", "told"),
    [
        (processor(more=", settings: {processingMod: {}}"), "InvalidParameters", "processingMod"),
        (
            filter_type(source="python: {path: stamp.py, settings: {secrets: {key: {name: k}}}}"),
            "InvalidParameters",
            "secrets: a mapping stands where a list is expected",
        ),
        (processor(more=", settings: {grpcInitialMetadata: 3}"), "InvalidParameters", "grpcInitialMetadata"),
        (
            processor().replace("[request-headers, backend-request]", "[connect]"),
            "UnsupportedValue",
            "not in connect",
        ),
    ],
)
def test_settings_that_the_built_in_type_does_not_take_are_told(source, reason, told):
    made = compiled(REVERSE, PLAIN, ROUTE, source)
    status, found, message = of_type(made)
    assert (status, found) == ("False", reason)
    assert told in message


def test_a_config_that_is_too_long_to_be_sent_is_a_load_error():
    ((_, field, message, _),) = problems(processor(), used(f"config: {{team: {'x' * 5000}}}"))
    assert (field, message) == ("spec.extensions[0].config", "longer than 4096 characters of JSON")


def test_an_object_of_the_api_may_name_a_processor():
    made = both("\n---\n".join([REVERSE, PLAIN, ROUTE, used()]), processor())
    assert of_type(made)[0] == "True"


def test_a_webhook_is_told_in_fields_and_signs_with_a_secret_of_a_namespace_that_it_names():
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: sign, namespace: hooks}\nstringData: {key: whsec_c2VzYW1l}"
    settings = ", settings: {path: /check, send: [request-body], secretRef: {name: sign, namespace: hooks}}"
    made = compiled(REVERSE, PLAIN, ROUTE, secret, processor(more=settings, protocol="Webhook"), used())
    assert of_type(made)[:2] == ("True", "Accepted")
    (spec,) = rule(made).extensions
    assert spec.implementation == "egressproxy.io/Webhook:v1"
    config = json.loads(spec.config)
    assert config["headers"] == [
        {"name": "x-egressproxy-filter-type", "value": TYPE},
        {"name": "x-egressproxy-filter-config", "value": '{"team":"research"}'},
    ]
    assert [value.reveal() for _, value in spec.secrets] == [b"whsec_c2VzYW1l"]
    FilterInstances(Catalog()).place(spec)
    made = compiled(REVERSE, PLAIN, ROUTE, processor(more=settings, protocol="Webhook"), used())
    assert of_type(made, "ResolvedRefs")[:2] == ("False", "SecretNotFound")


def test_a_step_of_a_pipeline_may_have_the_type_and_its_faults_are_told_with_their_line():
    pipeline = """
apiVersion: egressproxy.io/v1alpha1
kind: PayloadProcessingPipeline
metadata: {name: pipe}
spec:
  processors:
  - name: mine
    type: acme.example.com/Stamp:v1
    phase: request-headers
    config:
      teem: research
"""
    route = ROUTE.replace(
        "- backendRefs",
        "- filters: [{type: ExtensionRef, extensionRef:"
        " {group: egressproxy.io, kind: PayloadProcessingPipeline, name: pipe}}]\n    backendRefs",
    )
    with pytest.raises(ConfigError) as caught:
        compiled(REVERSE, PLAIN, filter_type(), pipeline, route)
    text = "\n---\n".join([REVERSE, PLAIN, filter_type(), pipeline, route]).splitlines()
    by_field = {problem.field_path: problem for problem in caught.value.problems}
    problem = by_field["spec.processors[0].config.teem"]
    assert (problem.message, text[problem.line - 1].strip()) == ("unknown field", "teem: research")
    made = compiled(REVERSE, PLAIN, filter_type(), pipeline.replace("teem", "team"), route)
    (spec,) = rule(made).extensions
    assert (spec.type, spec.implementation) == (TYPE, "egressproxy.io/Python:v1")


def test_a_file_has_the_secrets_and_backends_that_its_filter_type_names(tmp_path):
    (tmp_path / "stamp.py").write_text(
        FILE.replace("self.config = context.config", "self.config = {'team': str(sorted(context.secrets))}")
    )
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: sign, namespace: keys}\nstringData: {key: sesame}"
    backend = "{group: egressproxy.io, kind: Backend, name: plain, namespace: default}"
    settings = f"settings: {{secrets: [{{name: sign, key: key, namespace: keys}}], backends: [{backend}]}}"
    source = filter_type(source=f"python: {{path: stamp.py, {settings}}}")
    (tmp_path / "all.yaml").write_text("\n---\n".join([REVERSE, PLAIN, ROUTE, secret, source, used()]))
    made = compile_valid(load([tmp_path]), Catalog(), Defaults())
    assert of_type(made)[0] == "True"
    (spec,) = rule(made).extensions
    assert [value.reveal() for _, value in spec.secrets] == [b"sesame"]
    ((label, callee),) = spec.calls
    assert (label, callee.error) == ("Backend default/plain", "")
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    run(compile_chain([spec], FilterInstances(Catalog()).place).request_headers, x)
    assert x.notes == {"team": "['keys/sign/key']"}


def test_settings_of_a_file_do_not_say_which_file_it_is():
    source = filter_type(source="python: {path: stamp.py, settings: {path: ../other.py, config: {a: 1}}}")
    (spec,) = rule(compiled(REVERSE, PLAIN, ROUTE, source, used())).extensions
    config = json.loads(spec.config)
    assert (config["path"], config["config"]) == ("stamp.py", {"team": "research"})
    source = filter_type(source="python: {path: stamp.py, settings: {secret: []}}")
    assert of_type(compiled(REVERSE, PLAIN, ROUTE, source))[1] == "InvalidParameters"
