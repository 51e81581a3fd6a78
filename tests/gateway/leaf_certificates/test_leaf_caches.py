"""Which caches of leaves a snapshot takes over."""

from __future__ import annotations

from egressproxy.gateway.leaf_certificates.leaf_caches import LeafCaches
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.interceptions import Interceptions

ONE, TWO = ("chain", SecretBytes(b"key"), "agents/one"), ("other", SecretBytes(b"key"), "agents/one")


def test_a_ca_that_is_still_there_keeps_its_leaves_and_one_minter_serves_all():
    counted = Interceptions()
    before = LeafCaches()
    one = before.of(ONE, counted)
    after = LeafCaches(before)
    assert after.of(ONE, counted) is one is after.of(ONE, counted)
    assert after.of(TWO, counted)._minter is one._minter


def test_a_ca_that_was_gone_for_a_while_begins_anew():
    counted = Interceptions()
    before = LeafCaches()
    one = before.of(ONE, counted)
    between = LeafCaches(before)
    between.forget_known()
    assert LeafCaches(between).of(ONE, counted) is not one
    assert between.of(ONE, counted) is not one
