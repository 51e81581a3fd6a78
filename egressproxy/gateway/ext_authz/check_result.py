"""CheckResult: what an authorization server has said of a request, and what that does to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from egressproxy.filters.header_policy import is_protected
from egressproxy.model.field_change import FieldChange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`answer` is a denial, as the client gets it. None: the request goes on, changed by `request`, and the response to
    the client is changed by `response`.
    """

    answer: LocalResponse | None = None
    request: tuple[FieldChange, ...] = ()
    response: tuple[FieldChange, ...] = ()


def is_ours(name: bytes) -> bool:
    """Whether only the gateway writes this field, in any spelling: framing, routing, this hop."""
    return is_protected(name.decode("latin-1"))


def is_for_clients(name: bytes) -> bool:
    """Whether a server may send this field to clients. X-Egress-…, in either spelling, are fields of the gateway."""
    return not (is_ours(name) or name.lower().replace(b"_", b"-").startswith(b"x-egress-"))


def denial(status: int, fields: Iterable[tuple[bytes, bytes]], body: bytes, phrase: bytes = b"") -> CheckResult:
    """A refusal in the server's own words. Raises ValueError for a status or a field that no answer can have.

    A 407 would make clients send us the credentials that they have for a proxy.
    """
    if not 200 <= status <= 599 or status == 407:
        raise ValueError(f"status {status}")
    kept = tuple((name, value) for name, value in fields if is_for_clients(name) and name.lower() != b"date")
    return CheckResult(LocalResponse(status, tuple(Fields.of(kept)), b"" if status in (204, 304) else body, phrase))
