from __future__ import annotations

import base64

import pytest

from egressproxy.config.compile import suggestions
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.suggestions import NameSuggestions
from egressproxy.config.reading.load import load_text
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.object_references import ObjectReference
from tests.config.compile.kit import PLAIN
from tests.support.pki import Pki

BYTES = base64.b64encode(b"\xff").decode()

CONFIG = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: map}}
data: {{text: hello}}
binaryData: {{bytes: {BYTES}, broken: "%%%"}}
---
apiVersion: v1
kind: Secret
metadata: {{name: secret}}
stringData: {{word: sesame}}
"""


def data(kind: str, name: str, key: str) -> bytes:
    resources = load_text(PLAIN + "---" + CONFIG)
    return References(resources).data(resources.of(Backend)[0], ObjectReference(kind=kind, name=name), key)


def test_text_and_bytes_are_read_from_config_maps_and_secrets():
    assert data("ConfigMap", "map", "text") == b"hello"
    assert data("ConfigMap", "map", "bytes") == b"\xff"
    assert data("Secret", "secret", "word") == b"sesame"


@pytest.mark.parametrize(
    ("kind", "name", "key", "reason"),
    [
        ("ConfigMap", "gone", "text", "NotFound"),
        ("ConfigMap", "map", "gone", "NotFound"),
        ("ConfigMap", "map", "broken", "NotFound"),
        ("Service", "map", "text", "InvalidKind"),
    ],
)
def test_what_is_not_there_has_a_reason(kind: str, name: str, key: str, reason: str):
    with pytest.raises(UnresolvedRef) as caught:
        data(kind, name, key)
    assert caught.value.reason == reason


def test_what_was_meant_is_looked_for_among_so_many_names_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suggestions, "MAX_COMPARISONS", 3)
    names = NameSuggestions(load_text(PLAIN + "---" + CONFIG))
    wanted = ("", "ConfigMap", "default", "mop", "name it")
    assert [names.remedy(*wanted) for _ in range(3)] == ["did you mean map?"] * 3
    assert names.remedy(*wanted) == "in this namespace there is map"


def test_a_trust_bundle_is_named_from_every_namespace_and_told_when_it_is_wrong():
    pem = Pki().ca_pem.replace("\n", "\n    ")
    bundle = "apiVersion: certificates.k8s.io/v1beta1\nkind: ClusterTrustBundle\nmetadata: {name: 'NAME'}\nspec:\n"
    good = bundle.replace("NAME", "corp.test:ca") + f"  signerName: corp.test/ca\n  trustBundle: |\n    {pem}"
    bad = bundle.replace("NAME", "bad") + "  trustBundle: nothing\n"
    resources = load_text(f"{good}\n---\n{bad}\n---\n{PLAIN}")
    references, source = References(resources), resources.of(Backend)[0]

    def read(name: str, group: str = "certificates.k8s.io") -> str:
        return references.ca_bundle(source, ObjectReference(group=group, kind="ClusterTrustBundle", name=name))

    assert read("corp.test:ca").startswith("-----BEGIN CERTIFICATE-----")
    ((_, kind, namespace, name),) = references.validities
    assert (kind, namespace, name) == ("ClusterTrustBundle", "", "corp.test:ca")
    for wrong, reason, words in (
        (("bad",), "InvalidCertificate", "spec.trustBundle"),
        (("corp.test:cb",), "NotFound", "ClusterTrustBundle corp.test:cb does not exist"),
        (("corp.test:ca", ""), "InvalidKind", "write group: certificates.k8s.io"),
    ):
        with pytest.raises(UnresolvedRef) as raised:
            read(*wrong)
        assert raised.value.reason == reason
        assert words in raised.value.with_hint
