from __future__ import annotations

import pytest

from egressproxy.admin.status import ApiError
from egressproxy.kubeapi.read.selectors import _PART, field_selector, label_selector

OBJECT = {"metadata": {"name": "x", "namespace": "n", "labels": {"team": "a", "size": "7", "k8s.io/empty": ""}}}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("team=a", True),
        ("team==a", True),
        ("team = b", False),
        ("team!=b", True),
        ("team!=a", False),
        ("absent!=a", True),
        ("team", True),
        ("absent", False),
        ("!absent", True),
        ("!team", False),
        ("team in (a,b)", True),
        ("team in ( b, c )", False),
        ("team notin (b)", True),
        ("absent notin (b)", True),
        ("absent in (b)", False),
        ("team in (a,b),size", True),
        ("team=a,size=8", False),
        ("size>6", True),
        ("size<7", False),
        ("team>1", False),
        ("k8s.io/empty=", True),
        ("k8s.io/empty", True),
    ],
)
def test_a_label_selector_selects(text: str, holds: bool):
    selector = label_selector(text)
    assert selector is not None
    assert selector(OBJECT) is holds


def test_an_empty_selector_selects_everything():
    assert label_selector("") is None
    assert field_selector("", ()) is None


def test_an_object_without_labels_has_none():
    selector = label_selector("a=b")
    assert selector is not None
    assert not selector({"metadata": {"labels": None}})
    assert not selector({})


@pytest.mark.parametrize("text", ["a=b=c", "-a", "a in b", "a in (b", "a b", "é=1", "a>x", "a in (é)"])
def test_what_is_no_label_selector_is_refused(text: str):
    with pytest.raises(ApiError, match="unable to parse"):
        label_selector(text)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("metadata.name=x", True),
        ("metadata.name==y", False),
        ("metadata.name!=y,metadata.namespace=n", True),
        ("type=", True),
        ("type!=Opaque", True),
    ],
)
def test_a_field_selector_selects(text: str, holds: bool):
    selector = field_selector(text, ("metadata.name", "metadata.namespace", "type"))
    assert selector is not None
    assert selector(OBJECT) is holds


def test_a_field_that_nothing_is_selected_by_is_refused_with_those_that_are():
    with pytest.raises(ApiError, match=r'"spec.x"; supported are metadata.name'):
        field_selector("spec.x=1", ("metadata.name",))
    with pytest.raises(ApiError, match="invalid selector"):
        field_selector("metadata.name", ("metadata.name",))


@pytest.mark.parametrize("text", [",".join(["!a"] * 101), ",".join(["metadata.name!=a"] * 101)])
def test_a_selector_has_a_bounded_number_of_requirements(text: str):
    """Each object is held against each of them."""
    with pytest.raises(ApiError, match="101 requirements; 100 are served"):
        label_selector(text)
    with pytest.raises(ApiError, match="101 requirements; 100 are served"):
        field_selector(text, ("metadata.name",))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b in (x,y),c", ["a", "b in (x,y)", "c"]),
        ("a in (x,y", ["a in (x,y"]),
        ("a in (x,(y),b", ["a in (x,(y)", "b"]),
        ("a),b", ["a)", "b"]),
        (",,a,,", ["a"]),
    ],
)
def test_a_label_selector_is_divided_at_commas_outside_of_parentheses(text: str, parts: list[str]):
    assert _PART.findall(text) == parts


def test_a_selector_of_many_commas_is_read_once():
    """At 8,000 the square of the length stopped the event loop for a fifth of a second, at this length for hours."""
    assert label_selector("," * 1_000_000) is None
    with pytest.raises(ApiError):
        label_selector("(," * 500_000)
