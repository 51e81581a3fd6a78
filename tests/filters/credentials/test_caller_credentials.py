"""Credentials by who the caller is: the first entry that matches, and nothing for others."""

from __future__ import annotations

import pytest

from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.base import FilterContext, Phase, UnusableReference
from egressproxy.filters.credentials.config import CredentialInjectorConfig, machine_field
from egressproxy.filters.settings import secret_refs
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.exchange import CALLERS_OWN
from tests.filters.credentials.kit import ENDPOINT, LABEL, Endpoint, exchange, granted, injector, sent

CRAWLER = CallerIdentity("agents", "crawler", name="system:serviceaccount:agents:crawler", source="token")
WRITER = CallerIdentity("agents", "writer", name="system:serviceaccount:agents:writer", source="token")
PARTNER = CallerIdentity("agents@partner.example", "crawler", source="token")
USER = CallerIdentity(name="egress/users#ann", source="basic", groups=("staff",))
KEY = CallerIdentity(name="egress/keys#ci", source="key")
CALLERS = [
    {"subjects": [{"namespace": "agents", "serviceAccount": "crawler"}], "secretRef": {"name": "crawler"}},
    {"subjects": [{"namespace": "agents"}, {"name": "egress/keys#ci"}], "secretRef": {"name": "agents"}},
    {"subjects": [{"group": "staff"}], "secretRef": {"name": "staff"}},
    {"subjects": [{"namespace": "agents", "trustDomain": "partner.example"}], "secretRef": {"name": "partner"}},
]
SECRETS = {f"{name}/": f"KEY-OF-{name}-0123" for name in ("crawler", "agents", "staff", "partner", "rest")}


def of(identity, *lines):
    x = exchange(*lines)
    x.identity = identity
    return x


def authorization(x):
    return x.request.fields.get_all(b"authorization")


@pytest.mark.parametrize(
    ("identity", "name"),
    [(CRAWLER, "crawler"), (WRITER, "agents"), (KEY, "agents"), (USER, "staff"), (PARTNER, "partner")],
)
async def test_the_first_entry_that_matches_counts(identity, name):
    made = injector({"callers": CALLERS}, SECRETS)
    for _ in range(2):
        x = await sent(made, of(identity, (b"authorization", b"Bearer mine"), (b"x-api-key", b"k")))
        assert authorization(x) == [f"Bearer KEY-OF-{name}-0123".encode()]
        assert x.request.fields.get(b"x-api-key") is None
        assert CALLERS_OWN in x.state
    position = ["crawler", "agents", "staff", "partner"].index(name)
    assert made.decision(of(identity)) == f"callers[{position}]"


@pytest.mark.parametrize(
    "identity", [ANONYMOUS, CallerIdentity("agents2", "crawler"), CallerIdentity("agents@other", "crawler")]
)
async def test_nobody_else_gets_anything(identity):
    made = injector({"callers": CALLERS}, SECRETS)
    x = of(identity)
    for asked in (made.backend_request, made.forecast):
        with pytest.raises(Denied) as caught:
            asked(x)
        assert (caught.value.reason, caught.value.status) == (Reason.CREDENTIAL_NOT_FOR_CALLER, 403)
        assert "KEY-OF" not in f"{caught.value!r} {caught.value.message} {caught.value.remedy}"
    assert authorization(x) == []


async def test_the_source_beside_them_is_for_all_others():
    made = injector({"callers": CALLERS, "secretRef": {"name": "rest"}}, SECRETS)
    for identity, name in ((ANONYMOUS, "rest"), (CRAWLER, "crawler"), (ANONYMOUS, "rest")):
        assert authorization(await sent(made, of(identity))) == [f"Bearer KEY-OF-{name}-0123".encode()]
    assert made.decision(of(ANONYMOUS)) == ""


async def test_that_may_be_one_that_is_fetched():
    idp = Endpoint(granted())
    oauth2 = {"tokenEndpoint": ENDPOINT, "clientId": "me", "clientSecretRef": {"name": "rest"}}
    made = injector({"callers": CALLERS[:1], "oauth2": oauth2}, SECRETS, {LABEL: idp})
    assert authorization(await sent(made, of(WRITER))) == [b"Bearer tok-1"]
    assert authorization(await sent(made, of(CRAWLER))) == [b"Bearer KEY-OF-crawler-0123"]
    assert len(idp.asked) == 1
    made.close()


async def test_a_missing_secret_closes_its_entry_alone():
    made = injector({"callers": CALLERS}, {**SECRETS, "crawler/": ""})
    with pytest.raises(GatewayFault) as caught:
        made.backend_request(of(CRAWLER))
    assert (caught.value.reason, caught.value.status) == (Reason.CREDENTIAL_MISSING, 503)
    assert authorization(await sent(made, of(WRITER))) == [b"Bearer KEY-OF-agents-0123"]


async def test_responses_are_masked_with_the_value_of_their_caller():
    made = injector({"callers": CALLERS, "scrubResponses": True}, SECRETS)
    assert Phase.RESPONSE_BODY in made.runs_in
    x = await sent(made, of(CRAWLER))
    body = b"KEY-OF-crawler-0123 KEY-OF-agents-0123 end"
    assert made.response_body(x, body, True) == b"******************* KEY-OF-agents-0123 end"


async def test_placeholders_become_the_value_of_the_caller():
    made = injector({"callers": CALLERS, "placeholder": "p" * 16, "require": "placeholder"}, SECRETS)
    x = await sent(made, of(WRITER, (b"authorization", b"Bearer " + b"p" * 16)))
    assert authorization(x) == [b"Bearer KEY-OF-agents-0123"]
    with pytest.raises(Denied) as caught:
        made.backend_request(of(WRITER))
    assert caught.value.reason is Reason.PLACEHOLDER_REQUIRED


def test_a_value_that_no_field_can_have_is_that_of_its_reference():
    with pytest.raises(UnusableReference) as caught:
        injector({"callers": CALLERS}, {**SECRETS, "staff/": "a\nb"})
    assert caught.value.ref.name == "staff"


def test_the_secrets_of_every_entry_are_found():
    config = injector({"callers": CALLERS, "env": "HOME"}, SECRETS)._injectors[-1]._context.config
    assert (config.callers, machine_field(config)) == ((), "env")
    assert [ref.name for ref in secret_refs(made_config({"callers": CALLERS}))] == [
        "crawler",
        "agents",
        "staff",
        "partner",
    ]


def made_config(config):
    seen: list[FilterContext] = []

    class Kept:
        def __init__(self, context, _build):
            seen.append(context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("egressproxy.filters.credentials.caller_credentials.CallerCredentials", Kept)
        injector(config)
    found: CredentialInjectorConfig = seen[0].config
    return found


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"callers": []}, "one source of the credential is needed"),
        ({"callers": [{"subjects": [], "secretRef": {"name": "a"}}]}, "at least 1"),
        ({"callers": [{"subjects": [{}], "secretRef": {"name": "a"}}]}, "names no client"),
        ({"callers": [{"subjects": [{"namespace": "-"}], "secretRef": {"name": "a"}}]}, "pattern"),
        ({"callers": [{"subjects": [{"serviceAccount": "a", "group": "b"}], "secretRef": {"name": "a"}}]}, "namespace"),
        ({"callers": CALLERS, "secretRef": {"name": "a"}, "env": "B"}, "one source of the credential is needed"),
        ({"callers": CALLERS, "template": "Negotiate {}"}, "authenticates the connection"),
        ({"callers": CALLERS, "template": "ntlm {}"}, "authenticates the connection"),
    ],
)  # fmt: skip
def test_what_a_manifest_must_not_say(config, said):
    with pytest.raises(ValueError, match=said):
        injector(config)


def test_a_name_of_a_dash_is_nobody():
    made = injector({"callers": [{"subjects": [{"name": "-"}], "secretRef": {"name": "rest"}}]}, SECRETS)
    with pytest.raises(Denied):
        made.backend_request(of(ANONYMOUS))
