"""Asking a running process by its admin address."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Final

import click

__all__ = ["ADMIN", "ask"]

#: Where `run` listens without --admin.
ADMIN: Final = ("127.0.0.1", 15000)
#: Longer than a name server may take.
ASK_S: Final = 60.0


def ask(
    admin: tuple[str, int], path: str, pairs: Iterable[tuple[str, str]] = (), *, method: str = "GET"
) -> dict[str, Any]:
    """The JSON of one answer. Exits with 2 where nobody answers, or the question is refused."""
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import urlencode

    host, port = admin
    connection = HTTPConnection(host, port, timeout=ASK_S)
    try:
        connection.request(method, f"{path}?{urlencode(list(pairs))}", headers={"X-Egressproxy": "cli"})
        answer = connection.getresponse()
        body = json.loads(answer.read())
    except (OSError, HTTPException, ValueError) as error:
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        click.echo(
            f"egressproxy: the admin address {place} does not answer: {error} (is it running? --admin says where)",
            err=True,
        )
        sys.exit(2)
    finally:
        connection.close()
    if answer.status >= 400:
        click.echo(f"egressproxy: {body.get('message', answer.reason)}", err=True)
        sys.exit(2)
    found: dict[str, Any] = body
    return found
