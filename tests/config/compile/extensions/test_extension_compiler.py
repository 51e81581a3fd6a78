from __future__ import annotations

import json

import pytest

from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain
from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.filters.header_policy import HeaderEdits, HeaderPolicyConfig
from egressproxy.filters.instances import FilterInstances
from egressproxy.filters.settings import SecretRef
from egressproxy.ir.policy import ExtensionIR
from tests.config.compile.kit import (
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_object,
    of_policy,
    policy,
    rule,
)
from tests.support.compiling import compile_valid

SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {token: sesame}"


def backend(extension: str) -> str:
    return PLAIN + f"  extensions:\n  - {{{extension}}}\n"


def injector(more: str = "") -> str:
    return backend(
        "name: inject, type: 'egressproxy.io/CredentialInjector:v1', phase: backend-request, "
        f"config: {{secretRef: {{name: key, key: token}}, header: Authorization}}{more}"
    )


def filters_of(filters: str, gateway: str = REVERSE, backends: str = "") -> tuple[ExtensionIR, ...]:
    route = ROUTE.replace("- backendRefs", f"- filters: {filters}\n    backendRefs")
    if not backends:
        route = route[: route.index("    backendRefs")]
    return rule(compiled(gateway, PLAIN, route)).extensions


def problems(*manifests: str) -> list[tuple[str, str, str]]:
    with pytest.raises(ConfigError) as caught:
        compiled(REVERSE, *manifests)
    return [(problem.object, problem.field_path, problem.message) for problem in caught.value.problems]


def test_an_extension_of_a_backend_runs_for_that_backend():
    made = compiled(REVERSE, ROUTE, SECRET, injector(", priority: 7, failOpen: true, preAuth: true, timeout: 2s"))
    (found,) = rule(made).backends[0].extensions
    assert (found.name, found.type) == ("inject", "egressproxy.io/CredentialInjector:v1")
    assert (found.phase, found.priority, found.level) == ("backend-request", 7, 2)
    assert (found.fail_open, found.pre_auth, found.timeout_s) == (True, True, 2.0)
    assert json.loads(found.config) == {"header": "Authorization", "secretRef": {"key": "token", "name": "key"}}
    assert (found.scope, found.source) == ("Backend default/plain", "Backend default/plain")
    assert [(name, value.reveal()) for name, value in found.secrets] == [("key/token", b"sesame")]
    assert rule(made).extensions == ()


def test_what_serves_is_given_the_config_validated():
    made = compiled(REVERSE, ROUTE, SECRET, injector())
    (found,) = rule(made).backends[0].extensions
    assert found.settings == CredentialInjectorConfig(SecretRef("key", "token"), header="Authorization")
    twice = "[{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x-c]}}]"
    (one,), (other,) = (filters_of(twice, backends="yes") for _ in range(2))
    assert one.settings == other.settings == HeaderPolicyConfig(HeaderEdits(remove=("x-c",)))


def test_the_folder_of_the_file_goes_with_the_extension(tmp_path):
    from egressproxy.config.compile.interface import Defaults
    from egressproxy.config.reading.load import load
    from egressproxy.filters.catalog import Catalog
    from tests.support.compiling import compile_valid

    (tmp_path / "all.yaml").write_text("\n---\n".join([REVERSE, ROUTE, SECRET, injector()]))
    made = compile_valid(load([tmp_path]), Catalog(), Defaults())
    assert rule(made).backends[0].extensions[0].folder == str(tmp_path)


def test_a_missing_secret_leaves_the_filter_in_place_without_it():
    made = compiled(REVERSE, ROUTE, injector())
    (found,) = rule(made).backends[0].extensions
    assert found.secrets == ()
    assert rule(made).backends[0].backend is not None
    status, reason, message = of_object(made, "Backend", "default/plain", "ResolvedRefs")
    assert (status, reason) == ("False", "SecretNotFound")
    assert "Secret default/key with key token" in message


def test_a_secret_of_another_namespace_is_no_secret():
    made = compiled(REVERSE, ROUTE, injector(), SECRET.replace("{name: key}", "{name: key, namespace: other}"))
    assert rule(made).backends[0].extensions[0].secrets == ()


def test_a_phase_where_the_type_cannot_run_is_refused():
    ((name, path, message),) = problems(injector().replace("phase: backend-request", "phase: response-body"))
    assert (name, path) == ("Backend default/plain", "spec.extensions[0].phase")
    assert "cannot run in phase response-body" in message


def test_a_phase_of_requests_that_a_backends_own_leg_does_not_have_is_refused_on_a_backend():
    text = backend("name: h, type: 'egressproxy.io/BodyLimit:v1', phase: request-headers, config: {maxBytes: 1}")
    ((_, _, message),) = problems(text)
    assert "for a backend" in message


def test_the_phases_of_requests_and_responses_are_those_of_a_backends_own_leg():
    add = "config: {request: {add: [{name: X-A, value: b}]}}"
    kind = "type: 'egressproxy.io/HeaderPolicy:v1'"
    first, last = f"name: first, phase: request-headers, priority: 900, {kind}, {add}", f"name: last, {kind}, {add}"
    made = compiled(REVERSE, ROUTE, PLAIN + f"  extensions:\n  - {{{last}}}\n  - {{{first}}}\n")
    assert [(one.name, one.phase) for one in rule(made).backends[0].extensions] == [
        ("first", "backend-request"),
        ("last", "backend-request"),
    ]
    chain = compile_chain(reversed(rule(made).backends[0].extensions), FilterInstances(Catalog()).place)
    assert [step.spec.name for step in chain.backend_request or ()] == ["first", "last"]
    text = backend(f"name: h, phase: response-headers, {kind}, config: {{response: {{remove: [server]}}}}")
    made = compiled(REVERSE, ROUTE, text)
    assert rule(made).backends[0].extensions[0].phase == "backend-response"


def test_a_phase_may_be_left_out_where_there_is_only_one():
    made = compiled(REVERSE, ROUTE, SECRET, injector().replace("phase: backend-request, ", ""))
    assert rule(made).backends[0].extensions[0].phase == "backend-request"
    text = policy("extensions: [{name: h, type: 'egressproxy.io/HeaderPolicy:v1'}]")
    ((_, path, _),) = problems(text)
    assert path == "spec.extensions[0].phase"


def test_a_phase_that_is_left_out_on_a_backend_is_backend_request():
    text = backend("name: h, type: 'egressproxy.io/HeaderPolicy:v1'")
    assert rule(compiled(REVERSE, ROUTE, text)).backends[0].extensions[0].phase == "backend-request"


def test_a_config_that_does_not_fit_its_type_is_refused_with_its_field():
    text = backend(
        "name: h, type: 'egressproxy.io/HeaderPolicy:v1', phase: backend-request, "
        "config: {request: {set: [{name: a b, value: x}]}, more: 1}"
    )
    found = problems(text)
    assert {path for _, path, _ in found} == {
        "spec.extensions[0].config.more",
        "spec.extensions[0].config.request.set[0].name",
    }


def test_a_problem_of_a_config_stands_at_its_own_field_with_the_nearest_name():
    config = "config: {\n  requst: {}}"
    text = backend(f"name: h, type: 'egressproxy.io/HeaderPolicy:v1', phase: backend-request, {config}")
    with pytest.raises(ConfigError) as caught:
        compiled(text)
    (problem,) = caught.value.problems
    place = text[: text.index("requst")]
    assert (problem.line, problem.column) == (place.count("\n") + 1, len(place.rpartition("\n")[2]) + 1)
    assert (problem.message, problem.remedy) == ("unknown field requst", "did you mean request?")


@pytest.mark.parametrize(
    ("extension", "told"),
    [
        (
            "type: QoSController, phase: request-headers, config: {limits: [{type: Tokens, limit: 3, unit: Week}]}",
            "this text is not possible here (possible are Second, Minute, Hour, Day, Month)",
        ),
        (
            "type: TokenMeter, config: {prices: [{models: [a], input: 10ct, output: 1}]}",
            "text is not a number (write it in decimal digits, without quotes and unit)",
        ),
        (
            "type: PromptGuard, phase: request-headers, config: {roles: [users]}",
            "this text is not possible here (did you mean user?)",
        ),
        (
            "type: CredentialInjector, config: {secretRef: {name: k}, header: x-key, template: Bearer c4n4ry}",
            "the template has to contain {} exactly once, where the secret goes",
        ),
    ],
)  # fmt: skip
def test_a_value_that_is_not_possible_is_told_once_with_what_is(extension, told):
    on_backend = "Injector" in extension
    text = backend(f"name: x, {extension}") if on_backend else policy(f"extensions: [{{name: x, {extension}}}]")
    with pytest.raises(ConfigError) as caught:
        compiled(text)
    (problem,) = caught.value.problems
    assert told in f"{problem.message} ({problem.remedy})"
    assert "c4n4ry" not in str(caught.value)


def test_text_in_a_config_is_not_repeated_since_it_may_be_a_credential():
    text = backend(
        "name: c, type: 'egressproxy.io/CredentialInjector:v1', phase: backend-request, config: {secretRef: c4n4ry}"
    )
    with pytest.raises(ConfigError) as caught:
        compiled(text)
    assert "c4n4ry" not in str(caught.value)
    assert any("stands where a mapping is expected" in problem.message for problem in caught.value.problems)


def test_problems_of_all_objects_come_at_once():
    second = injector().replace("name: plain", "name: second").replace("header: Auth", "headers: Auth")
    text = injector().replace("phase: backend-request", "phase: connect")
    assert [name for name, _, _ in problems(text, second)] == ["Backend default/plain", "Backend default/second"]


def test_the_extensions_of_a_backend_that_cannot_be_used_are_checked_all_the_same():
    text = (
        injector()
        .replace("header: Auth", "headers: Auth")
        .replace("tls: {mode: None}", "protocol: H2C, tls: {mode: None}")
    )
    assert problems(text)


def test_the_extensions_of_a_policy_without_target_are_checked_all_the_same():
    assert problems(policy("extensions: [{name: x, type: BodyLimit, config: {maxByte: 1}}]", name="gone"))


@pytest.mark.parametrize("value", [r'"tok\r\nX: y"', r'"tok\ny"', r'"tok\0y"'])
def test_a_credential_with_a_line_break_inside_is_as_good_as_missing(value: str):
    made = compiled(REVERSE, ROUTE, injector(), SECRET.replace("sesame", value))
    assert rule(made).backends[0].extensions[0].secrets == ()
    status, _reason, message = of_object(made, "Backend", "default/plain", "ResolvedRefs")
    assert status == "False"
    assert "line break" in message
    assert "tok" not in message.replace("token", "")


def test_a_newline_at_the_end_of_a_credential_is_no_problem():
    made = compiled(REVERSE, ROUTE, injector(), SECRET.replace("sesame", r'"sesame\n"'))
    assert rule(made).backends[0].extensions[0].secrets


def test_an_empty_credential_is_a_missing_one():
    made = compiled(REVERSE, ROUTE, injector(), SECRET.replace("sesame", r'"\n"'))
    assert rule(made).backends[0].extensions[0].secrets == ()
    assert of_object(made, "Backend", "default/plain", "ResolvedRefs")[0] == "False"


def test_a_policys_missing_secret_is_said_in_its_status():
    text = policy(
        "extensions: [{name: i, type: 'egressproxy.io/CredentialInjector:v1', phase: backend-request, "
        "config: {secretRef: {name: key, key: token}, header: x-key}}]",
        "Backend",
        "plain",
    )
    made = compiled(REVERSE, PLAIN, ROUTE, text)
    assert of_policy(made, "ResolvedRefs")[:2] == ("False", "SecretNotFound")


def test_the_working_groups_extension_defaults_to_backend_request():
    text = """
apiVersion: gateway.networking.k8s.io/v1alpha1
kind: Backend
metadata: {name: plain}
spec:
  destination: {type: FQDN, fqdn: {hostname: a.example}, ports: [{number: 443, tls: {mode: Simple}}]}
  extensions:
  - {name: h, type: 'egressproxy.io/HeaderPolicy:v1', rawConfig: {request: {remove: [x-a]}}}
"""
    route = ROUTE.replace("egressproxy.io, kind", "gateway.networking.k8s.io, kind")
    (found,) = rule(compiled(REVERSE, route, text)).backends[0].extensions
    assert (found.phase, json.loads(found.config)) == ("backend-request", {"request": {"remove": ["x-a"]}})


def test_extensions_run_by_priority_then_level_then_age():
    extension = (
        "extensions: [{{name: {}, type: 'egressproxy.io/HeaderPolicy:v1', phase: request-headers, priority: {}}}]"
    )
    made = compiled(
        REVERSE,
        PLAIN,
        ROUTE,
        policy(extension.format("young", 5), policy_name="a", meta='creationTimestamp: "2025-01-01T00:00:00Z"'),
        policy(extension.format("old", 5), policy_name="b", meta='creationTimestamp: "2024-01-01T00:00:00Z"'),
        policy(extension.format("route", 5), "HTTPRoute", "route", policy_name="c"),
        policy(extension.format("first", 1), "HTTPRoute", "route", policy_name="d"),
    )
    assert [one.name for one in rule(made).extensions] == ["first", "old", "young", "route"]
    assert [one.name for one in listener(made).extensions] == ["old", "young"]
    assert [one.scope for one in rule(made).extensions][-1] == "HTTPRoute default/route"


def injecting(config: str) -> str:
    return backend(f"name: inject, type: 'egressproxy.io/CredentialInjector:v1', config: {{{config}}}")


@pytest.mark.parametrize(
    ("config", "field"),
    [("env: HOME", "env"), ("file: key", "file"), ("command: {argv: [/bin/id]}", "command")],
)
def test_what_leads_to_the_machine_is_for_manifests_and_not_for_the_api(config, field):
    (found,) = rule(compiled(REVERSE, ROUTE, injecting(config))).backends[0].extensions
    assert getattr(found.settings, field)
    text = "\n---\n".join([REVERSE, ROUTE, injecting(config)])
    with pytest.raises(ConfigError) as caught:
        compile_valid(load_text(text, "state.yaml", is_from_api=True), Catalog(), Defaults())
    (problem,) = caught.value.problems
    assert problem.field_path == f"spec.extensions[0].config.{field}"
    assert "written through the API must not" in problem.message
    assert "HOME" not in problem.message


def test_a_secret_that_is_missing_is_told_with_its_own_field():
    made = compiled(REVERSE, ROUTE, SECRET, injecting("secretRef: {name: key}, basic: {usernameRef: {name: gone}}"))
    told = of_object(made, "Backend", "default/plain", "ResolvedRefs")
    assert told[:2] == ("False", "SecretNotFound")
    assert told[2].startswith("spec.extensions[0].config.basic.usernameRef: missing")


def test_a_secret_of_some_callers_is_told_with_its_entry_and_needs_a_grant():
    some = "{subjects: [{namespace: a}], secretRef: {name: key}}"
    for ref, reason in (("{name: gone}", "SecretNotFound"), ("{name: key, namespace: other}", "RefNotPermitted")):
        callers = f"callers: [{some}, {{subjects: [{{group: b}}], secretRef: {ref}}}]"
        made = compiled(REVERSE, ROUTE, SECRET, injecting(callers))
        told = of_object(made, "Backend", "default/plain", "ResolvedRefs")
        assert told[:2] == ("False", reason)
        assert told[2].startswith("spec.extensions[0].config.callers[1].secretRef: ")
        (found,) = rule(made).backends[0].extensions
        assert dict(found.secrets).keys() == {"key/"}


@pytest.mark.parametrize(("at", "is_named"), [("[idp]", True), ("[other/idp]", False), ("[]", False)])
def test_a_token_endpoint_that_no_policy_names_is_told(at: str, is_named: bool):
    idp = PLAIN.replace("name: plain", "name: idp")
    ref = "{group: egressproxy.io, kind: Backend, name: idp}"
    exchange = f"tokenExchange: {{tokenEndpoint: {{backendRef: {ref}}}, audience: [a]}}"
    issuer = "{issuer: a, audiences: [b], jwksURI: 'https://a.example/keys'}"
    theirs = policy(f"identity: {{token: {{issuers: [{issuer}], exchangeAt: {at}}}}}")
    told = of_object(
        compiled(REVERSE, ROUTE, injecting(exchange), theirs, idp), "Backend", "default/plain", "ResolvedRefs"
    )
    where = "spec.extensions[0].config.tokenExchange.tokenEndpoint.backendRef"
    assert told[0] == str(is_named)
    assert (f"{where}: no policy names default/idp in identity.token.exchangeAt" in told[2]) is not is_named
