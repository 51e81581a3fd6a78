"""The pool of a destination."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.micro.stage import Stage
from egressproxy.upstream.pool import Pool, PoolTicket


class Connection:
    """What a pool looks at."""

    is_lost = False

    def is_leaving(self) -> bool:
        return False


def stages() -> Iterator[Stage]:
    pool: Pool[Connection] = Pool("bench")
    for _ in range(10):
        assert pool.may_open(PoolTicket("bench"))
        pool.release(Connection(), reusable=True)

    def borrow() -> None:
        connection = pool.take()
        assert connection is not None
        pool.release(connection, reusable=True)

    yield Stage("upstream", "pool: take and release", borrow)
