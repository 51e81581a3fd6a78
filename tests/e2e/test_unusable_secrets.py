"""A Secret that does not fit its filter closes the places of that filter, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get
from tests.support import manifests as m
from tests.support.mounted import mount
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until

HOST = "origin.test"
BAD = {"key": "hush", "token": "hush", "pem": "hush", "webhook": "whsec_hush!"}
#: The field of each object that names its Secret.
FIELDS = {
    "scrubbing": "spec.extensions[0].config.secretRef",
    "signing": "spec.extensions[0].config.oauth2.privateKeyRef",
    "hooked": "spec.extensions[0].config.secretRef",
    "audited": "spec.extensions[0].config.keyRef",
}
PLACES = (*FIELDS, "python")


def good() -> dict[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return {"key": "k" * 40, "token": "a-long-enough-value", "pem": pem, "webhook": "whsec_" + "QUJD" * 8}


PYTHON = """
from egressproxy.filters import Filter, Rejected

class Keyed(Filter):
    def __init__(self, context):
        if len(context.secrets["keys/key"]) < 16:
            raise Rejected("the key is too short")

    def request_headers(self, x):
        pass
"""


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def backend(name: str, kind: str, config: dict[str, Any], origin: Origin) -> m.Manifest:
    extension = {"name": "mine", "type": f"egressproxy.io/{kind}:v1", "config": config}
    return m.backend(name, HOST, origin.port, extensions=[extension])


def of_route(name: str, kind: str, config: dict[str, Any], **more: Any) -> m.Manifest:
    extension = {"name": "mine", "type": f"egressproxy.io/{kind}:v1", "phase": "request-headers", "config": config}
    made = m.policy(name=name, extensions=[{**extension, **more}])
    made["spec"]["targetRefs"] = [{"group": m.GATEWAY_API, "kind": "HTTPRoute", "name": name}]
    return made


def world(port: int, dns: NameServer, origin: Origin, folder: Path) -> list[m.Manifest]:
    """A backend for each kind of Secret, one of which takes the Secret `keys`, and `plain`, which takes none."""
    scrub = {"secretRef": {"name": "keys", "key": "token"}, "scrubResponses": True, "template": "{}"}
    called = {"name": "plain", "group": "egressproxy.io", "kind": "Backend"}
    endpoint = {"backendRef": called, "path": "/token", "allowPlaintext": True}
    signing = {
        "tokenEndpoint": endpoint, "grant": "JwtBearer", "issuer": "me", "assertionAudience": "you",
        "privateKeyRef": {"name": "keys", "key": "pem"},
    }  # fmt: skip
    hook = {"backendRefs": [called], "send": ["request-headers"], "secretRef": {"name": "keys", "key": "webhook"}}
    audit = {"folder": str(folder), "keyRef": {"name": "keys", "key": "key"}}
    python = {"path": "keyed.py", "secrets": [{"name": "keys", "key": "key"}]}
    named = {
        "scrubbing": backend("scrubbing", "CredentialInjector", {**scrub, "allowPlaintext": True}, origin),
        "signing": backend("signing", "CredentialInjector", {"oauth2": signing, "allowPlaintext": True}, origin),
        "hooked": of_route("hooked", "Webhook", hook, failOpen=True),
        "audited": of_route("audited", "Audit", audit, failOpen=True),
        "python": of_route("python", "Python", python),
    }
    routes = [
        m.http_route(name, m.prefix_rule(f"/{name}", name if made["kind"] == "Backend" else "plain"))
        for name, made in named.items()
    ]
    return [
        m.gateway(m.http_listener(port)),
        m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK),
        m.backend("plain", HOST, origin.port),
        m.http_route("plain", m.prefix_rule("/plain", "plain")),
        *named.values(),
        *routes,
    ]


def asked(port: int, name: str) -> tuple[int, str]:
    with client(port) as sock:
        status, body = ask(sock, get(HOST, port, f"/{name}/x", absolute=False))
    return status, body.decode()


def is_closed(port: int, name: str) -> bool:
    status, body = asked(port, name)
    return status == 503 and "filter_unusable" in body and "hush" not in body


def condition(gateway: GatewayProcess, plural: str, name: str) -> dict[str, Any]:
    """ResolvedRefs of an object."""
    text = gateway.admin(f"/apis/egressproxy.io/v1alpha1/namespaces/agents/{plural}/{name}")[1]
    status = json.loads(text)["status"]
    parts = [status, *status.get("ancestors", ())]
    return next(each for part in parts for each in part.get("conditions", ()) if each["type"] == "ResolvedRefs")


def told_of(gateway: GatewayProcess) -> set[str]:
    """The objects with an Event that a filter cannot be used."""
    items = json.loads(gateway.admin("/apis/events.k8s.io/v1/namespaces/agents/events")[1])["items"]
    told = [each["regarding"] for each in items if each["reason"] == "FilterUnusable"]
    return {each["name"] for each in told if each["kind"] in ("Backend", "EgressPolicy")}


def verb(name: str, *arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("egressproxy")), name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_it_closes_its_places_alone_and_mending_it_opens_them(dns: NameServer, tmp_path: Path):
    mounted, port = tmp_path / "mounted", free_port()
    folder = tmp_path / "audit"
    folder.mkdir()
    mount(mounted, BAD)
    secret = f"agents/keys={mounted}"
    with Origin() as origin:
        objects = world(port, dns, origin, folder)
        gateway = GatewayProcess(tmp_path / "gw", objects, arguments=["--secret", secret, "--workers", "2"])
        (gateway.config / "keyed.py").write_text(PYTHON)
        with gateway:  # at the first start
            assert asked(port, "plain") == (200, "ok")
            for name in PLACES:
                assert is_closed(port, name), name
            for name, field in FIELDS.items():
                plural = "backends" if name in ("scrubbing", "signing") else "egresspolicies"
                told = condition(gateway, plural, name)
                assert (told["status"], told["reason"]) == ("False", "InvalidSecret"), name
                assert told["message"].startswith(f"{field}: "), told
                assert told["message"].endswith("until it is mended, requests are refused")
            wait_until(lambda: told_of(gateway) == set(PLACES))

            checked = verb("check", str(gateway.config), "--secret", secret)
            for name in PLACES:
                assert f"agents/{name}: " in checked
            assert "5 not served as written" in checked
            explained = verb(
                "explain", "GET", f"http://{HOST}:{port}/scrubbing/x", "--admin", f"127.0.0.1:{gateway.admin_port}"
            )
            assert "filter_unusable" in explained
            explained = verb(
                "explain", "GET", f"http://{HOST}:{port}/audited/x", "--admin", f"127.0.0.1:{gateway.admin_port}"
            )
            assert "filter_unusable" in explained

            # A change of somebody else is in force all the same.
            gateway.replace([*objects, m.http_route("more", m.prefix_rule("/more", "plain"))])
            wait_until(lambda: asked(port, "more")[0] == 200)
            assert is_closed(port, "scrubbing")

            mount(mounted, good())
            wait_until(lambda: asked(port, "scrubbing") == (200, "ok"))
            assert [asked(port, name)[0] for name in ("hooked", "audited", "python", "more")] == [200] * 4
            assert "credential_missing" in asked(port, "signing")[1]  # its token endpoint gives none
            assert condition(gateway, "backends", "scrubbing")["status"] == "True"

            mount(mounted, BAD)  # in a reload
            wait_until(lambda: is_closed(port, "scrubbing"))
            assert all(is_closed(port, name) for name in PLACES)
            assert asked(port, "more") == (200, "ok")
            assert gateway.metric("egress_config_last_reload_success") == 1
            assert "hush" not in gateway.stderr + checked + explained
