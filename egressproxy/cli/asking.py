"""Requests to the admin address of a running process; and what one with a configuration in files would answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

import click

from egressproxy.cli.problems import compiled_or_exit
from egressproxy.cli.styled_lines import printable
from egressproxy.model.authority import Authority

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

    from egressproxy.gateway.snapshot import Snapshot
    from egressproxy.model.secret import ConfigSource

#: Where `run` listens without --admin.
ADMIN: Final = ("127.0.0.1", 15900)
#: The environment variable with another default of --admin, as for the option.
ADMIN_VARIABLE: Final = "EGRESSPROXY_ADMIN"
#: Fields that every answer of the admin address has (`admin.status.HEADERS`). A proxy in front of it replaces Server.
MARKS: Final = {"Server": "egressproxy", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
#: Timeout of one request: longer than a DNS query, or the reload of a large configuration, may take.
ASK_S: Final = 150.0


class AdminAddress(NamedTuple):
    """The admin address of a process, and the token of its `--api-token-file`; "" for none."""

    host: str
    port: int
    token: str = ""

    def __repr__(self) -> str:  # without the token
        return str(Authority(self.host, self.port))

    def connect(self, path: str, accept: str, timeout_s: float | None, method: str = "GET") -> HTTPConnection:
        """A connection that has sent this request. Raises OSError."""
        from http.client import HTTPConnection

        fields = {"X-Egressproxy": "cli", "Accept": accept}
        if self.token:
            fields["Authorization"] = f"Bearer {self.token}"
        connection = HTTPConnection(self.host, self.port, timeout=timeout_s)
        connection.request(method, path, headers=fields)
        return connection


def ask(
    admin: AdminAddress,
    path: str,
    pairs: Iterable[tuple[str, str]] = (),
    *,
    method: str = "GET",
    accept: str = "application/json",
    not_found: int = 2,
    near: Callable[[], str] | None = None,
) -> dict[str, Any]:
    """The JSON body of one response. Exits with 2 without a response, or if refused; with `not_found` for a 404, after
    the lines of `near`; with 1 for a 409 (not carried out).
    """
    with _answer(admin, path, pairs, accept, ASK_S, method, not_found, near) as answer:
        body: dict[str, Any] = json.loads(answer.read())
    return body


def lines(
    admin: AdminAddress, path: str, pairs: Iterable[tuple[str, str]], accept: str = "application/json"
) -> Iterator[bytes]:
    """The lines of a streamed response, until it ends. Exits with 2 if there is no response, or it is refused."""
    with _answer(admin, path, pairs, accept, None) as answer:
        yield from answer


@contextmanager
def _answer(
    admin: AdminAddress,
    path: str,
    pairs: Iterable[tuple[str, str]],
    accept: str,
    timeout_s: float | None,
    method: str = "GET",
    not_found: int = 2,
    near: Callable[[], str] | None = None,
) -> Iterator[HTTPResponse]:
    """The response. Exits as `ask` does without one, and for a refusal."""
    from http.client import BadStatusLine, HTTPException, RemoteDisconnected
    from urllib.parse import urlencode

    try:
        with closing(admin.connect(f"{path}?{urlencode(list(pairs))}", accept, timeout_s, method)) as connection:
            answer = connection.getresponse()
            if not is_of_gateway(answer):
                name = answer.getheader("Server", "")
                _refuse_other(admin, f"another server of HTTP{f' ({printable(name[:80])})' if name else ''}")
            if answer.status >= 400:
                click.echo(f"egressproxy: {json.loads(answer.read()).get('message', answer.reason)}", err=True)
                if answer.status == 404 and near is not None:
                    click.echo(near(), err=True)
                sys.exit({404: not_found, 409: 1}.get(answer.status, 2))
            yield answer
    except RemoteDisconnected:
        _refuse_other(admin, "a program that closes the connection")
    except BadStatusLine:
        _refuse_other(admin, "a program that does not speak HTTP")
    except (OSError, HTTPException, ValueError) as error:
        hint = f"is egressproxy running, and not with --admin off? --admin or ${ADMIN_VARIABLE} gives its address"
        if path in ("/explain", "/dns"):
            hint += "; --config PATH answers by manifests, without a process"
        click.echo(f"egressproxy: the admin address {admin} does not answer: {error} ({hint})", err=True)
        sys.exit(2)


def is_of_gateway(answer: HTTPResponse) -> bool:
    """Whether the admin address of a gateway has made this response."""
    return any(answer.getheader(name) == value for name, value in MARKS.items())


def _refuse_other(admin: AdminAddress, who: str) -> NoReturn:
    click.echo(
        f"egressproxy: {admin} is not the admin address of a gateway: {who} answers there"
        f" (--admin or ${ADMIN_VARIABLE} gives the address that the gateway has logged: `admin on http://…`)",
        err=True,
    )
    sys.exit(2)


Q = TypeVar("Q")
Pairs = list[tuple[str, str]]


def answer_offline(
    config: Sequence[ConfigSource], bind: tuple[str, ...], pairs: Pairs, read: Callable[[Pairs], Q],
    answer: Callable[[Snapshot, Q], Awaitable[dict[str, Any]]], *, experimental: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """What `answer` says of this configuration to the question that `read` finds in these parameters. Exits with 2 if
    it cannot be served. Raises click.UsageError for a question that is none.
    """
    import asyncio

    from egressproxy.doors.products import offline
    from egressproxy.operators.explain.hypothetical_request import HypotheticalRequestError

    async def answered() -> dict[str, Any]:
        return await answer(offline(spec), question)

    try:
        question = read(pairs)
        spec = compiled_or_exit(config, bind, experimental)
        return asyncio.run(answered())
    except HypotheticalRequestError as error:
        raise click.UsageError(str(error)) from None
    except (ValueError, OSError) as error:  # a filter or a certificate that cannot be built
        click.echo(f"egressproxy: this configuration cannot be served: {error}", err=True)
        sys.exit(2)
