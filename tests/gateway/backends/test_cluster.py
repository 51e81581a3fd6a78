"""How connections to backends are given out: queues, shares of clients, and what is given back when somebody leaves."""

from __future__ import annotations

from tests.gateway.conftest import Start
from tests.gateway.kit import GET, GET_SENT, OK, OK_PASSED, exchange, forward, through_parent, visit
from tests.support import manifests as m


# --- the queue -----------------------------------------------------------------------------------------------------
def test_exchanges_wait_for_a_connection_and_get_it_in_order(converse: Start):
    talk = converse(forward())
    exchange(talk)
    (pool,) = talk.pools()
    pool.limit = 1
    first, second, third = talk.connect(), talk.connect(), talk.connect()
    talk.client >> GET
    for client in (first, second, third):
        client >> GET
    assert len(pool.waiting) == 3
    assert [cluster.waiting for cluster in talk.snapshot.clusters.values()] == [3]
    second.leaves()
    assert len(pool.waiting) == 2
    for client in (talk.client, first, third):
        talk.origin << GET_SENT
        assert not talk.origin.got
        talk.origin >> OK
        client << OK_PASSED
    assert (talk.open, talk.idle) == (1, 1)


def test_a_lost_connection_gives_its_place_to_whoever_waits(converse: Start):
    talk = converse(forward())
    exchange(talk)
    (pool,) = talk.pools()
    pool.limit = 1
    second = talk.connect()
    talk.client >> GET.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n")
    second >> GET
    talk.origin.resets()
    assert talk.client.answer()[0] == 502
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    second << OK_PASSED


def test_a_full_queue_is_a_503(converse: Start):
    talk = converse(forward())
    exchange(talk)
    (pool,) = talk.pools()
    pool.limit = pool.waiting.limit = 0
    pool.take().transport.abort()
    talk.settle()
    talk.client >> GET
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"], fields["Retry-After"]) == (503, "queue_full", "1")


def test_who_waits_too_long_is_told_to_come_again(converse: Start):
    talk = converse(forward(traffic={"timeouts": {"connect": "2s"}}))
    exchange(talk)
    (pool,) = talk.pools()
    pool.limit = 1
    second, third = talk.connect(), talk.connect()
    talk.client >> GET
    second >> GET
    talk.after(1.5)
    third >> GET
    second.hears_nothing()
    talk.after(1)
    status, _, fields, error = second.answer()
    assert (status, error["reason"], fields["Retry-After"]) == (503, "queue_timeout", "1")
    assert talk.record()["reason"] == "queue_timeout"
    third.hears_nothing()
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.origin << GET_SENT
    talk.origin >> OK
    third << OK_PASSED


# --- several clients -------------------------------------------------------------------------------------------------
SLOW_POST = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9\r\n\r\n"
SLOW_POST_SENT = b"POST / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nContent-Length: 9\r\n\r\n"


def test_slow_uploads_of_one_client_leave_connections_for_others(converse_on: Start):
    talk = converse_on(forward())
    exchange(talk)
    (pool,) = talk.pools()
    pool.limit, pool.share = 6, 2
    for number in range(6):
        slow = talk.connect(address="127.0.0.66")
        slow >> SLOW_POST
        if 0 < number < 4:  # the first has the connection that was there
            talk.dialled("a.example", 80)
        if number < 4:
            talk.origin << SLOW_POST_SENT
    assert (pool.open, len(pool.waiting)) == (4, 2)
    other = talk.connect(address="127.0.0.7")
    for is_new in (True, False):
        other >> GET
        if is_new:
            talk.dialled("a.example", 80)
        talk.origin << GET_SENT
        talk.origin >> OK
        other << OK_PASSED


def test_a_client_that_leaves_gives_its_share_back_at_once(converse_on: Start):
    talk = converse_on(forward())
    exchange(talk)
    (pool,) = talk.pools()
    pool.limit = pool.share = 1
    slow = talk.connect(address="127.0.0.66")
    slow >> SLOW_POST
    talk.origin << SLOW_POST_SENT
    talk.client >> GET
    talk.no_dial()
    slow.resets()
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED


def test_the_next_free_connection_is_for_whoever_has_waited_among_many_of_one_client(converse_on: Start):
    talk = converse_on(forward())
    exchange(talk)
    (pool,) = talk.pools()
    pool.limit = 1
    many = [talk.connect(address="127.0.0.66") for _ in range(4)]
    for client in many:
        client >> GET
    other = talk.connect(address="127.0.0.7")
    other >> GET
    for client in (many[0], many[1], other, many[2], many[3]):
        talk.origin << GET_SENT
        talk.origin >> OK
        client << OK_PASSED


def test_idle_connections_that_one_client_has_left_behind_leave_descriptors_for_others(converse_on: Start):
    talk = converse_on(forward(allow=("*.example",)))
    talk.network.opened.share = 2
    for host in ("a.example", "b.example", "c.example"):
        visit(talk, host)
    talk.origins[2].is_closed()
    for origin in talk.origins[:2]:
        origin.is_open()
    assert (talk.open, talk.idle) == (2, 2)
    greedy, talk.client = talk.client, talk.connect(address="127.0.0.7")
    visit(talk, "d.example")
    assert (talk.open, talk.idle) == (3, 3)
    talk.origins[0].leaves()
    talk.until(lambda: talk.open == 2)
    talk.client = greedy
    visit(talk, "e.example")
    assert (talk.open, talk.idle) == (3, 3)


# --- how long a connection is used -----------------------------------------------------------------------------------
def kept(**connections: object) -> list[m.Manifest]:
    return forward(traffic={"connections": connections})


def test_a_connection_carries_so_many_requests_and_no_more(converse_on: Start):
    talk = converse_on(kept(maxRequests=2))
    for _ in range(2):
        exchange(talk)
        exchange(talk, is_new=False)
        talk.origin.is_closed()
        talk.until(lambda: talk.open == 0)
    assert talk.open == 0


def test_a_connection_goes_at_its_age_where_it_is_idle(converse: Start):
    talk = converse(kept(maxAge="10s"))
    exchange(talk)
    talk.after(9)
    exchange(talk, is_new=False)
    talk.origin.is_open()
    talk.after(1.3)
    talk.origin.is_closed()
    assert talk.open == 0
    exchange(talk)


def test_a_connection_carries_its_exchange_to_the_end_beyond_its_age(converse: Start):
    talk = converse(kept(maxAge="10s"))
    talk.client >> GET
    talk.dialled("a.example", 80) << GET_SENT
    talk.after(12)
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.origin.is_closed()
    assert talk.open == 0


def test_who_waits_gets_another_connection_where_one_has_carried_enough(converse: Start):
    talk = converse(kept(maxRequests=1))
    talk.client >> GET
    first = talk.dialled("a.example", 80)
    (pool,) = talk.pools()
    pool.limit = 1
    second = talk.connect()
    second >> GET
    first << GET_SENT
    first >> OK
    talk.client << OK_PASSED
    talk.dialled("a.example", 80) << GET_SENT
    talk.origin >> OK
    second << OK_PASSED


def test_a_connection_to_a_parent_is_used_as_long_as_the_policy_says(converse: Start):
    objects = through_parent(80)
    objects[1] = m.policy(["a.example"], traffic={"connections": {"maxRequests": 1}})
    talk = converse(objects)
    for _ in range(2):
        talk.client >> GET
        talk.dialled("parent.example", 3128).take(rb"GET http://a.example/ .*?\r\n\r\n")
        talk.origin >> OK
        talk.client << OK_PASSED
        talk.origin.is_closed()
