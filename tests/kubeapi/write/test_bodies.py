"""What a body may be."""

from __future__ import annotations

import pytest

from egressproxy.kubeapi.write.bodies import read_body


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": [1, 2.5, -0.0, true, null, "\\ud83d\\ude00"]}', {"a": [1, 2.5, -0.0, True, None, "\U0001f600"]}),
        ('{"a": "x\u0085y"}'.encode(), {"a": "x\u0085y"}),  # a line break to YAML
        (b'\n {"a": "\\/"}', {"a": "/"}),
        (b"{a: b, c: [d]}", {"a": "b", "c": ["d"]}),
        (b"a: no", {"a": False}),
        (b'{"a": "no"}', {"a": "no"}),
    ],
)
def test_json_is_read_as_json_and_the_rest_as_yaml(body: bytes, value: object):
    assert read_body(body) == value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a": {"b": 1, "b": 2}}', 'the key "b" stands twice'),
        (b"{a: 1, a: 2}", "the key a stands twice"),
        (b'{"a": 12345678901234567890}', "more than 19 digits"),
        (b'{"a": Infinity}', "a number is too large"),
        (b'{"a": 1e999}', "a number is too large"),
        (b'{"a": "\\udc00"}', "half of a surrogate pair"),
        (b"[" * 91 + b"]" * 91, "deeper than 90 levels"),
        (b"[" * 5000 + b"]" * 5000, "deeper than 90 levels"),
        (b"[" * 100_000 + b"]" * 100_000, "deeper than 90 levels"),
        (b"[" * 200, "deeper than 100 levels"),
        (b"[" + b"1," * 200_001 + b"1]", "more than 200000 values"),
        (b"a: 1\n---\nb: 2", "one object is expected"),
        (b"", "one object is expected"),
        (b"\xff\xfe{}", "UTF-16"),
    ],
)
def test_what_could_hurt_is_refused(body: bytes, words: str):
    with pytest.raises(ValueError, match=words):
        read_body(body)
