from __future__ import annotations

import pytest

from egressproxy.gateway.ext_authz.check_result import denial, is_ours


def test_the_fields_of_this_hop_and_of_the_framing_are_ours():
    for name in (b"Host", b"content-length", b"Transfer-Encoding", b"connection", b"proxy-authorization", b"Via"):
        assert is_ours(name)
    assert not is_ours(b"authorization")


def test_a_denial_has_no_framing_but_ours():
    forged = [(b"X-Egress-Request-Id", b"1"), (b"x_egress_new", b"1")]
    said = [(b"Content-Length", b"9"), (b"Date", b"now"), (b"www-authenticate", b"Basic"), *forged]
    made = denial(401, said, b"no").answer
    assert made is not None
    assert (made.status, made.fields, made.body) == (401, ((b"www-authenticate", b"Basic"),), b"no")
    without = denial(304, [], b"no").answer
    assert without is not None
    assert without.body == b""


@pytest.mark.parametrize("status", [0, 101, 199, 407, 600])
def test_a_status_that_no_client_could_be_told_is_refused(status: int):
    with pytest.raises(ValueError):
        denial(status, [], b"")
