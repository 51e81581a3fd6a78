"""The access log for people: one line an exchange, made of the line of JSON in the thread that writes it.

    10:02:54.837Z 403 CONNECT paste.example:443  destination_not_allowed: add {hostnames: ["paste.example"], …
    10:02:55.120Z 200 GET     api.example:443/v1/models  125 ms  agents/openai

Paths, names and details are written by others: each control or other invisible character (bidirectional ones, too) is
escaped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final, Self

from egressproxy.errors import Reason
from egressproxy.model.addresses import allow_remedy
from egressproxy.model.authority import parse_authority
from egressproxy.telemetry.diagnostics import escaped
from egressproxy.telemetry.event_aggregator import REMEDIES

#: Longer texts are cut: a line of JSON has all of it.
MAX_WHERE: Final = 160
MAX_DETAIL: Final = 300
#: Codes of "Select Graphic Rendition" (ECMA-48 section 8.3.117).
_GREEN, _YELLOW, _RED, _DIM, _BOLD = "32", "33", "31", "2", "1"
#: What to do where neither the error nor REMEDIES says it: in short what docs/troubleshooting.md says.
_TO_DO: Final[Mapping[Reason, str]] = {
    Reason.DESTINATION_DENIED: "remove or narrow the entry of destinations.deny",
    Reason.NO_POLICY: "attach an EgressPolicy with destinations.allow, or a route",
    Reason.ADDRESS_DENIED: "leave it closed, or name the range and the hosts in addresses.allow of a configuration",
    Reason.REVERSE_DNS_DENIED: "correct the PTR records, or set dns.reverseCheck: Report",
    Reason.CREDENTIALS_REQUIRED: "give the client its token or password: https_proxy=http://any:TOKEN@gateway:port",
    Reason.CREDENTIALS_REFUSED: "give the client a fresh token or the right password",
    Reason.IDENTITY_KILLED: "`egressproxy kill-switch list` says why, and `restore` ends it",
    Reason.PLAINTEXT_CREDENTIAL: "add `tls` to the Backend, or `allowPlaintext: true` to the filter",
    Reason.CREDENTIAL_NOT_BOUND: "correct `bind` of the filter, or place it on its Backend",
    Reason.PLACEHOLDER_REQUIRED: "configure the client with the placeholder in place of a key",
    Reason.PLACEHOLDER_MISPLACED: "find out why the client sends it there: it may have been tricked",
    Reason.CANARY_KEY: "find out how the client came by it",
    Reason.APPROVAL_LIMIT: "see `egressproxy holds list`",
    Reason.APPROVAL_DENIED: "ask again, or raise `timeout` of the filter",
    Reason.AUTHORIZATION_REQUIRED: "have the user open the URL in the message of the response",
    Reason.EXT_AUTH_DENIED: "ask the authorization server of the route",
    Reason.NEW_NAMES: "raise dns.newNames.limit where the client needs so many names",
    Reason.NO_ROUTE: "attach a route whose hostnames and matches fit: `egressproxy explain` says what was compared",
    Reason.BACKEND_INVALID: "see the status of the object, or `egressproxy check`",
    Reason.FILTER_UNUSABLE: "see the status of the object, or `egressproxy check`",
    Reason.UNKNOWN_EXTENSION: "see `egressproxy filters` for the types that there are",
    Reason.CREDENTIAL_MISSING: "add the Secret, the variable or the file of the credential",
    Reason.DNS_NXDOMAIN: "correct the name: it does not exist",
    Reason.DNS_NO_ADDRESS: "correct the name: it has no address",
    Reason.DNS_TIMEOUT: "see whether the name server answers: `egressproxy doctor`",
    Reason.DNS_SERVFAIL: "see whether the name server answers: `egressproxy doctor`",
    Reason.CONNECT_REFUSED: "start the server, or correct the port",
    Reason.CONNECT_TIMEOUT: "see whether a firewall drops the connection, and whether a parent proxy is needed",
    Reason.CONNECT_FAILED: "see whether this machine has a route there",
    Reason.PARENT_AUTH: "correct the credentials of the parent proxy",
    Reason.NO_HEALTHY_ENDPOINT: "see `egressproxy get backends` for the health of its endpoints",
}


class TextLines:
    """Makes text of batches of JSON lines."""

    def __init__(self, *, is_coloured: bool) -> None:
        self._is_coloured = is_coloured

    @classmethod
    def for_descriptor(cls, descriptor: int) -> Self:
        """In colour on a terminal that can show it, unless $NO_COLOR is set (no-color.org)."""
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(is_coloured=os.isatty(descriptor) and not is_plain)

    def render(self, chunk: bytes) -> bytes:
        """The lines of text for these lines of JSON."""
        lines = map(self._line_of, chunk.decode("utf-8", "backslashreplace").split("\n")[:-1])
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")

    def _line_of(self, line: str) -> str:
        try:
            return self.line(json.loads(line))
        except Exception:  # a filter's field stands in the place of one of ours, or is nested too deep
            return escaped(line)

    def line(self, values: Mapping[str, Any]) -> str:
        """The text of one exchange."""
        status, reason = int(values["status"]), values["reason"]
        path = values["path"] if values["path"] != "-" else ""
        parts = [
            self._styled(_DIM, str(values["time"])[11:]),
            self._styled(_status_style(status, reason), f"{status:3}"),
            self._styled("", f"{values['method']:7}"),
            self._styled("", _cut(values["authority"] + path, MAX_WHERE)) + " ",
        ]
        if reason == "-":
            parts.append(self._styled(_DIM, f"{values['duration_ms']:.0f} ms"))
        else:
            more = [_cut(str(values.get("detail", "")), MAX_DETAIL), _remedy(reason, values)]
            why = "; ".join(filter(None, more))
            parts.append(self._styled(_BOLD, reason) + self._styled("", f": {why}" if why else ""))
        if would_deny := values.get("would_deny"):
            parts.append(self._styled(_YELLOW, f" mode Enforce would deny: {', '.join(would_deny)}"))
        if about := _about(values):
            parts.append(self._styled(_DIM, f" {about}"))
        return " ".join(parts)

    def _styled(self, style: str, text: str) -> str:
        return f"\x1b[{style}m{escaped(text)}\x1b[0m" if self._is_coloured and style else escaped(text)


def remedy_of(reason: Reason) -> str:
    """What to do about a reason in general; "" where nothing is known, or nothing is to be done."""
    return _TO_DO.get(reason, REMEDIES.get(reason, ""))


def _remedy(reason: str, values: Mapping[str, Any]) -> str:
    """What to add or mend; "" where the log cannot say."""
    known = Reason(reason)
    if known is Reason.DESTINATION_NOT_ALLOWED:
        try:
            remedy = allow_remedy(parse_authority(str(values["authority"]).encode(), 0))
        except ValueError:
            return ""
        rule = values.get("rule", "-")
        field = "destinations.allow"
        return remedy if rule == "-" else remedy.replace(f"to {field}", f"to {field} of {rule}", 1)
    return remedy_of(known)


def _about(values: Mapping[str, Any]) -> str:
    """Who asked, and which backend answered, where they are known."""
    who = "/".join(each for each in (values["namespace"], values["service_account"]) if each != "-")
    who = who or str(values.get("identity", ""))
    backend = f"→ {values['backend']}" if values["backend"] != "-" else ""
    return " ".join(filter(None, (who, backend)))


def _status_style(status: int, reason: str) -> str:
    if status >= 500 or status == 0:
        return _RED
    return _YELLOW if status >= 400 or reason != "-" else _GREEN


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"
