"""Which variant of a listener a client gets."""

from __future__ import annotations

import pytest

from egressproxy.errors import Denied, Reason
from egressproxy.gateway.client_variants import MAX_KNOWN, ClientVariants
from egressproxy.ir.gateway import SubjectIR
from egressproxy.model.exchange import ANONYMOUS, CallerIdentity

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
    variants = ClientVariants(SUBJECTS, MADE, "others")
    assert [variants.of(identity), variants.of(identity)] == [expected] * 2
    assert variants.depends_on_more


def test_what_has_no_variant_is_refused():
    variants = ClientVariants(SUBJECTS, MADE, "others")
    for _ in range(2):
        with pytest.raises(Denied, match=r"more than are served: claim, group") as denied:
            variants.of(CallerIdentity(groups=("dev",), claims=(("tier", "gold"),)))
        assert denied.value.reason is Reason.NO_POLICY


def test_what_is_remembered_is_bounded():
    variants = ClientVariants(SUBJECTS, MADE, "others")
    for number in range(MAX_KNOWN + 5):
        assert variants.of(CallerIdentity("team", f"a{number}")) == "ns"
    assert len(variants._known) == 5
    assert not ClientVariants(SUBJECTS[:2], MADE, "others").depends_on_more
