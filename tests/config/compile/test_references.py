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
