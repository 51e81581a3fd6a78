"""Which variant of a listener a client gets."""

from __future__ import annotations

import tracemalloc

import pytest

from egressproxy.errors import Denied, Reason
from egressproxy.gateway.subject_overrides import MAX_CHARACTERS, MAX_KNOWN, SubjectOverrides
from egressproxy.ir.policy import SubjectIR
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity

SUBJECTS = (
    ("ns", (SubjectIR("team"), SubjectIR("second"))),
    ("account", (SubjectIR("team", "robot"),)),
    ("group", (SubjectIR(group="dev"),)),
    ("claim", (SubjectIR(claim=("tier", "gold")), SubjectIR("team", "", "ops", ("tier", "tin")))),
)


def name(*policies: str) -> tuple[frozenset[str], str]:
    return frozenset(policies), "+".join(policies)


MADE = dict([name("ns"), name("ns", "account"), name("group"), name("claim"), name("ns", "claim")])


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (ANONYMOUS, "others"),
        (CallerIdentity("team"), "ns"),
        (CallerIdentity("second", "robot"), "ns"),
        (CallerIdentity("third", "robot"), "others"),
        (CallerIdentity("team", "other"), "ns"),
        (CallerIdentity("team", "robot"), "ns+account"),
        (CallerIdentity("-", "robot"), "others"),
        (CallerIdentity(groups=("dev", "more")), "group"),
        (CallerIdentity(groups=("de", "devel")), "others"),
        (CallerIdentity(claims=(("tier", "gold"),)), "claim"),
        (CallerIdentity(claims=(("tier", "tin"),)), "others"),
        (CallerIdentity("team", groups=("ops",), claims=(("tier", "tin"),)), "ns+claim"),
        (CallerIdentity("team", groups=("ops",), claims=(("tier", "bronze"),)), "ns"),
        (CallerIdentity("third", groups=("ops",), claims=(("tier", "tin"),)), "others"),
    ],
)
def test_all_that_is_written_has_to_fit(identity: CallerIdentity, expected: str):
    variants = SubjectOverrides(SUBJECTS, MADE, "others")
    assert [variants.of(identity), variants.of(identity)] == [expected] * 2
    assert variants.depends_on_more


def test_what_has_no_variant_is_refused():
    variants = SubjectOverrides(SUBJECTS, MADE, "others")
    for _ in range(2):
        with pytest.raises(Denied, match=r"more than are served: claim, group") as denied:
            variants.of(CallerIdentity(groups=("dev",), claims=(("tier", "gold"),)))
        assert denied.value.reason is Reason.NO_POLICY


def test_what_an_identity_remembers_is_of_one_listener_and_one_configuration():
    identity = CallerIdentity("team", "robot")
    one, other = SubjectOverrides(SUBJECTS, MADE, "others"), SubjectOverrides(SUBJECTS[:1], MADE, "others")
    for _ in range(3):
        assert (one.of(identity), other.of(identity)) == ("ns+account", "ns")


def test_what_is_remembered_is_bounded():
    variants = SubjectOverrides(SUBJECTS, MADE, "others")
    for number in range(MAX_KNOWN + 5):
        assert variants.of(CallerIdentity("team", f"a{number}")) == "ns"
    assert len(variants._known) == 5
    assert not SubjectOverrides(SUBJECTS[:2], MADE, "others").depends_on_more


def test_identities_that_come_and_go_take_a_bounded_memory():
    """What a token says of its client may be long."""
    variants = SubjectOverrides(SUBJECTS, MADE, "others")
    tracemalloc.start()
    try:
        for number in range(30_000):
            groups = tuple(f"{number} {group} {'x' * 200}" for group in range(number % 20))
            identity = CallerIdentity(
                "second", f"a{number}", name=f"system:serviceaccount:second:a{number}", groups=groups
            )
            assert variants.of(identity) == "ns"
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(variants._known) <= MAX_KNOWN
    assert max(map(len, variants._known)) <= MAX_CHARACTERS
    assert used < 10 * 1024 * 1024
