import json
from datetime import UTC, datetime, timedelta

import pytest

from egressproxy.errors import GatewayFault
from tests.filters.credentials.kit import ENDPOINT, LABEL, RSA_KEY, Endpoint, claims, granted, injector, pem, sent

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ACCOUNT = {
    "type": "service_account", "client_email": "gw@p.iam.gserviceaccount.com", "private_key": pem(RSA_KEY),
    "private_key_id": "kid-1", "token_uri": "https://oauth2.googleapis.com/token",
}  # fmt: skip
IAM = {"group": "egressproxy.io", "kind": "Backend", "name": "iam"}


def with_account(path="/token"):
    endpoint = {**ENDPOINT, "path": path}
    return {"gcp": {"serviceAccount": {"keyRef": {"name": "sa", "key": "json"}, "tokenEndpoint": endpoint}}}


async def test_a_service_account_signs_who_it_is():
    google = Endpoint(granted("ya29.x"))
    made = injector(with_account(), {"sa/json": json.dumps(ACCOUNT, indent=2)}, {LABEL: google})
    assert (await sent(made)).request.fields.get(b"authorization") == b"Bearer ya29.x"
    form = dict(google.form)
    head, said = claims(form.pop("assertion"), RSA_KEY)
    assert form == {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}
    assert head == {"alg": "RS256", "typ": "JWT", "kid": "kid-1"}
    assert said["exp"] - said["iat"] <= 3600
    assert {name: said[name] for name in ("iss", "sub", "aud", "scope")} == {
        "iss": ACCOUNT["client_email"], "sub": ACCOUNT["client_email"], "aud": ACCOUNT["token_uri"], "scope": SCOPE
    }  # fmt: skip
    made.close()


@pytest.mark.parametrize("text", ["S3CR3T", "[]", '{"client_email": 1}', json.dumps({**ACCOUNT, "private_key": "x"})])
def test_a_key_file_that_is_none_is_refused_and_not_shown(text):
    with pytest.raises(ValueError, match="JSON key file") as caught:
        injector(with_account(), {"sa/json": text})
    assert "S3CR3T" not in str(caught.value)


def test_a_key_file_does_not_say_where_the_assertion_goes():
    with pytest.raises(ValueError, match="another token_uri"):
        injector(with_account("/elsewhere"), {"sa/json": json.dumps(ACCOUNT)})


def federated(tmp_path, **more):
    (tmp_path / "token").write_text("projected\n")
    endpoint = {**ENDPOINT, "path": "/v1/token"}
    file = str(tmp_path / "token")
    return {"gcp": {"workloadIdentity": {"tokenFile": file, "audience": "//iam/p", "tokenEndpoint": endpoint, **more}}}


async def test_a_token_of_the_cluster_is_exchanged(tmp_path):
    google = Endpoint(granted("federated"))
    made = injector(federated(tmp_path), {}, {LABEL: google})
    assert (await sent(made)).request.fields.get(b"authorization") == b"Bearer federated"
    assert google.asked[0][1] == b"/v1/token"
    assert dict(google.form) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "audience": "//iam/p", "scope": SCOPE,
        "requested_token_type": "urn:ietf:params:oauth:token-type:access_token", "subject_token": "projected",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    }  # fmt: skip
    made.close()


def impersonated(life_s):
    end = datetime.now(UTC) + timedelta(seconds=life_s)
    return 200, {"accessToken": "of-the-account", "expireTime": end.strftime("%Y-%m-%dT%H:%M:%SZ")}


async def test_and_may_act_as_a_service_account(tmp_path):
    google, iam = Endpoint(granted("federated")), Endpoint(impersonated(3600), backend="agents/iam")
    target = {"email": "sa@p.iam.gserviceaccount.com", "endpoint": IAM}
    made = injector(federated(tmp_path, impersonate=target), {}, {LABEL: google, "Backend iam": iam})
    assert (await sent(made)).request.fields.get(b"authorization") == b"Bearer of-the-account"
    method, path, fields, body = iam.asked[0]
    assert (method, path) == (
        b"POST", b"/v1/projects/-/serviceAccounts/sa@p.iam.gserviceaccount.com:generateAccessToken"
    )  # fmt: skip
    assert fields.get(b"authorization") == b"Bearer federated"
    assert json.loads(body) == {"scope": [SCOPE], "lifetime": "3600s"}
    assert 1 <= made._refresher.retry_s < 3600
    made.close()


async def test_a_token_that_has_ended_is_none(tmp_path):
    google, iam = Endpoint(granted("federated")), Endpoint(impersonated(-5), backend="agents/iam")
    target = {"email": "sa@p.iam.gserviceaccount.com", "endpoint": IAM}
    made = injector(federated(tmp_path, impersonate=target), {}, {LABEL: google, "Backend iam": iam})
    with pytest.raises(GatewayFault) as caught:
        await sent(made)
    assert "expireTime" in caught.value.detail
    made.close()


async def test_the_metadata_server_is_asked_as_it_wants():
    server = Endpoint(granted("of-the-machine"), is_verified=False)
    made = injector({"gcp": {"metadata": {"backendRef": ENDPOINT["backendRef"]}}}, {}, {LABEL: server})
    assert (await sent(made)).request.fields.get(b"authorization") == b"Bearer of-the-machine"
    method, path, fields, body = server.asked[0]
    assert (method, path, body) == (b"GET", b"/computeMetadata/v1/instance/service-accounts/default/token", b"")
    assert fields.get(b"metadata-flavor") == b"Google"
    made.close()


@pytest.mark.parametrize(
    "gcp", [{}, {"metadata": {"backendRef": IAM}, "serviceAccount": with_account()["gcp"]["serviceAccount"]}]
)
def test_one_way_is_needed(gcp):
    with pytest.raises(ValueError, match=r"config\.gcp"):
        injector({"gcp": gcp})
