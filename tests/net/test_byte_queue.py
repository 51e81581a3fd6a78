from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.net.byte_queue import JOINED_SIZE, KEPT_SIZE, SMALL_SIZE, ByteQueue, keep

SIZES = st.lists(st.one_of(st.integers(1, 5), st.integers(SMALL_SIZE - 2, SMALL_SIZE + 2)), max_size=60)


def filled(sizes: list[int]) -> tuple[ByteQueue, bytes]:
    pieces, octets = ByteQueue(), b""
    for number, size in enumerate(sizes):
        data = bytes([number & 0xFF]) * size
        octets += data
        pieces.append(data)
    return pieces, octets


@given(SIZES)
def test_all_octets_are_kept_in_their_order(sizes: list[int]):
    pieces, octets = filled(sizes)
    assert bool(pieces) is bool(sizes)
    assert pieces.joined() == octets
    assert b"".join(pieces) == octets
    taken = []
    while pieces:
        taken.append(pieces.popleft())
    assert b"".join(taken) == octets
    assert all(taken)


def test_small_pieces_are_few():
    pieces, octets = filled([2] * 32 * 1024)
    assert len(pieces) <= len(octets) // JOINED_SIZE + 1
    assert len(pieces) <= 5


def test_a_large_piece_is_not_copied():
    pieces, data = ByteQueue(), bytes(SMALL_SIZE)
    pieces.append(data)
    assert pieces.joined() is data
    assert pieces.popleft() is data
    with pytest.raises(IndexError):
        pieces.popleft()


def test_cleared_it_holds_nothing():
    pieces, _ = filled([1, 1000, 1])
    pieces.clear()
    assert not pieces
    assert pieces.joined() == b""


@given(st.lists(st.sampled_from((1, 2, 100, KEPT_SIZE - 1, KEPT_SIZE, KEPT_SIZE + 1)), max_size=60))
def test_neighbours_in_a_list_are_joined(sizes: list[int]):
    pieces: list[bytes] = []
    octets = b""
    for number, size in enumerate(sizes):
        data = bytes([number & 0xFF]) * size
        octets += data
        keep(pieces, data)
    assert b"".join(pieces) == octets
    assert all(len(first) + len(second) > KEPT_SIZE for first, second in pairwise(pieces))
