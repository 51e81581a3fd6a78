from __future__ import annotations

import pytest

from egressproxy.errors import Reason
from egressproxy.telemetry.response_flags import flags_for


@pytest.mark.parametrize(
    ("reason", "flag"),
    [
        (Reason.OK, ""),
        (Reason.DESTINATION_NOT_ALLOWED, ""),
        (Reason.NO_ROUTE, "NR"),
        (Reason.CONNECT_REFUSED, "UF"),
        (Reason.RESPONSE_TIMEOUT, "UT"),
        (Reason.CLIENT_GONE, "DC"),
        (Reason.DNS_NXDOMAIN, "DF"),
        (Reason.REQUEST_RATE, "RL"),
        (Reason.BAD_FRAMING, "DPE"),
        (Reason.BAD_RESPONSE, "UPE"),
        (Reason.NO_ENDPOINT, "UH"),
        (Reason.CONCURRENCY, "UO"),
    ],
)
def test_a_reason_has_the_flag_that_envoy_would_log(reason: Reason, flag: str):
    assert flags_for(reason) == flag


def test_every_fault_of_an_upstream_has_a_flag():
    members = list(Reason)
    upstream = members[members.index(Reason.DNS_NXDOMAIN) :]
    assert [reason for reason in upstream if not flags_for(reason)] == []
