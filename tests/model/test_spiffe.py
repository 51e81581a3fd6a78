"""SPIFFE ids: what a certificate says of a workload, and what says nothing."""

from __future__ import annotations

import pytest

from egressproxy.model.exchange import ANONYMOUS, CallerIdentity
from egressproxy.model.spiffe import workload

ID = "spiffe://cluster.local/ns/team/sa/robot"


def test_a_workload_of_a_trust_domain_is_known():
    known = CallerIdentity("team", "robot", name=ID, source="certificate")
    assert workload([ID], ("cluster.local", "other.test")) == known
    assert workload([ID], ("other.test", "cluster.local")) == known.replace(namespace="team@cluster.local")
    found = workload(["spiffe://a_b/ns/n/sa/a.b-c"], ("a_b",))
    assert found is not None
    assert (found.namespace, found.service_account) == ("n", "a.b-c")


@pytest.mark.parametrize(
    "uris",
    [
        [],
        [ID, ID],
        [ID, "https://a.example/"],
        ["https://cluster.local/ns/team/sa/robot"],
        ["SPIFFE://cluster.local/ns/team/sa/robot"],
        ["spiffe://Cluster.local/ns/team/sa/robot"],
        ["spiffe://cluster.local:80/ns/team/sa/robot"],
        ["spiffe://me@cluster.local/ns/team/sa/robot"],
        ["spiffe://other.test/ns/team/sa/robot"],
        ["spiffe://cluster.local.other.test/ns/team/sa/robot"],
        ["spiffe://cluster.local"],
        ["spiffe://cluster.local/team/robot"],
        ["spiffe://cluster.local/ns/team/sa/robot/"],
        ["spiffe://cluster.local/ns/team/sa/robot/more"],
        ["spiffe://cluster.local/ns/team/sa/robot?a"],
        ["spiffe://cluster.local/ns/team/sa/robot#a"],
        ["spiffe://cluster.local/ns/team/sa/robot\n"],
        ["spiffe://cluster.local/ns/team\0/sa/robot"],
        ["spiffe://cluster.local/ns//sa/robot"],
        ["spiffe://cluster.local/ns/./sa/robot"],
        ["spiffe://cluster.local/ns/-team/sa/robot"],
        ["spiffe://cluster.local/ns/Team/sa/robot"],
        ["spiffe://cluster.local/ns/t%65am/sa/robot"],
        [f"spiffe://cluster.local/ns/{'t' * 64}/sa/robot"],
        [f"spiffe://cluster.local/ns/team/sa/{'r' * 254}"],
        ["spiffe://cluster.local/ns/te\u0430m/sa/robot"],
    ],
)
def test_nobody_else_is(uris: list[str]):
    assert workload(uris, ("cluster.local",)) is ANONYMOUS


def test_where_no_trust_domain_is_believed_nobody_is_known():
    assert workload([ID], ()) is ANONYMOUS
