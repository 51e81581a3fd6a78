"""The hash ring: even shares, and keys that stay where they are."""

from __future__ import annotations

from collections import Counter

from egressproxy.upstream.hash_ring import MAX_POINTS, MIN_POINTS, HashRing

NAMES = [f"10.0.0.{each}:80" for each in range(10)]
#: Of the key user-1.
ORDER = [3, 6, 7, 8, 2, 0, 5, 4, 9, 1]
KEYS = [f"user-{each}".encode() for each in range(5000)]


def first(ring: HashRing, key: bytes, out: frozenset[int] = frozenset()) -> int:
    return next(place for place in ring.order(key) if place not in out)


def test_each_endpoint_has_about_its_share():
    shares = Counter(first(HashRing(NAMES), key) for key in KEYS)
    assert len(shares) == 10
    assert max(shares.values()) < 1.5 * min(shares.values())


def test_leaving_one_out_moves_its_keys_alone():
    ring = HashRing(NAMES)
    for key in KEYS:
        if (before := first(ring, key)) != 3:
            assert first(ring, key, frozenset((3,))) == before


def test_an_endpoint_that_comes_takes_its_share_and_moves_no_other_key():
    before, after = HashRing(NAMES), HashRing([*NAMES, "10.0.0.99:80"])
    moved = [key for key in KEYS if first(before, key) != first(after, key)]
    assert {first(after, key) for key in moved} == {10}
    assert 0.5 < len(moved) / (len(KEYS) / 11) < 1.5


def test_a_key_knows_every_endpoint_once_in_the_same_order_everywhere():
    assert list(HashRing(NAMES).order(b"k")) == list(HashRing(NAMES).order(b"k"))
    assert sorted(HashRing(NAMES).order(b"k")) == list(range(10))


def test_the_order_is_the_same_for_ever():
    """Other gateways of a fleet, and later versions, have to agree with this one."""
    assert list(HashRing(NAMES).order(b"user-1")) == ORDER


def test_many_endpoints_have_a_bounded_number_of_points():
    assert len(HashRing([str(each) for each in range(1000)])._points) <= MAX_POINTS
    assert len(HashRing([str(each) for each in range(5000)])._points) == MIN_POINTS * 5000
