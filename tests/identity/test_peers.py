"""Certificates of clients: the subject as a whole, in whatever order, and nothing that only looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.identity.peers import CertificateTable, read_subject, workload
from egressproxy.ir.identity import CertificateClientIR
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity

TEAM = [[("organizationName", "team")]]
ROBOT = [*TEAM, [("commonName", "robot")]]


def found(value: str, subject: list[Any], kind: str = "subject", names: tuple[tuple[str, str], ...] = ()) -> bool:
    table = CertificateTable([CertificateClientIR(kind, value, "team", "robot")])
    known = table.find({"subject": subject, "subjectAltName": names})
    return (
        known is not None
        and (known.namespace, known.service_account) == ("team", "robot")
        and known.source == "certificate"
    )


@pytest.mark.parametrize("text", ["CN=robot,O=team", "O=team, CN=robot", "o=team,cn=robot", "CN=robot+O=team"])
def test_a_subject_in_whatever_order(text: str):
    assert found(text, ROBOT)
    assert found(text, ROBOT[::-1])
    assert found(text, [[("commonName", "robot"), ("organizationName", "team")]])


@pytest.mark.parametrize(
    "subject",
    [
        [],
        TEAM,
        [[("commonName", "robot")]],
        [*ROBOT, [("organizationalUnitName", "more")]],
        [*ROBOT, [("organizationName", "team")]],
        [*TEAM, [("commonName", "Robot")]],
        [*TEAM, [("organizationalUnitName", "robot")]],
        [[("commonName", "robot,O=team")]],
    ],
    ids=range(8),
)
def test_another_subject_is_another_client(subject: list[Any]):
    assert not found("CN=robot,O=team", subject)


def test_a_comma_in_a_value_is_written_with_a_backslash():
    assert found(r"CN=robot\, the first,O=team", [*TEAM, [("commonName", "robot, the first")]])


@pytest.mark.parametrize("text", ["", "robot", "CN=", "CN=a,", "XX=a", "CN=a,=b", "CN", "CN=a;O=b,c"])
def test_what_is_no_subject(text: str):
    if text != "CN=a,":  # a comma at the end says nothing
        with pytest.raises(ValueError):
            read_subject(text)


def test_alternative_names_are_of_their_kind():
    assert found("robot.example", [], "DNS", (("DNS", "Robot.Example"),))
    assert not found("robot.example", [], "DNS", (("URI", "robot.example"),))
    assert not found("robot.example", [], "DNS", (("DNS", "*.example"),))
    assert found("urn:robot", [], "URI", (("URI", "urn:robot"),))
    assert not found("urn:robot", [], "URI", (("URI", "urn:Robot"),))
    assert found("robot@example.com", [], "email", (("email", "robot@example.com"),))


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
