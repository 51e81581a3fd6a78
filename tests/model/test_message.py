"""Heads of messages."""

from __future__ import annotations

from egressproxy.model.authority import Authority
from egressproxy.model.fields import Fields
from egressproxy.model.message import Hop, RequestHead, TargetForm
from tests.support.attributes import attributes
from tests.support.builds import of_sources


@of_sources
def test_a_copied_head_says_the_same_and_has_fields_of_its_own():
    hop = Hop(Authority("a.example", 80), 7, True, http_1_0=True, te_trailers=True, upgrade=b"x", via=b"1.1 y")
    head = RequestHead(b"POST", b"http://a.example/b?c", Fields.of([(b"a", b"1")]), hop)
    head.form, head.scheme, head.host, head.path = TargetForm.ABSOLUTE, b"http", b"a.example", b"/b?c"
    head.expect_continue, head.max_forwards = True, 3
    fresh = attributes(RequestHead(b"POST", b"http://a.example/b?c", Fields(), Hop()))
    assert [name for name, value in attributes(head).items() if value == fresh[name]] == ["method", "target"]
    made = head.copy()
    assert made.fields.block == head.fields.block
    assert made.fields is not head.fields
    said, copied = attributes(head), attributes(made)
    assert {**copied, "fields": None} == {**said, "fields": None}
