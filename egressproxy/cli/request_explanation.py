"""`egressproxy explain --request`: what was decided about a request that has ended, and what would be decided now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, Final

import click

from egressproxy.cli.asking import AdminAddress, Pairs, ask
from egressproxy.cli.denials import caller_of
from egressproxy.cli.explanation import show
from egressproxy.cli.styled_lines import StyledLine, print_found, print_lines, printable
from egressproxy.model.encoding import json_object, rfc3339

#: What every line of the access log has, as text.
_NAMES: Final = (
    "time", "method", "authority", "path", "gateway", "listener", "namespace", "service_account", "reason",
    "request_id",
)  # fmt: skip
#: Of a line of the access log, what is shown of how the request ended.
_ENDING: Final = ("status", "upstream", "route", "backend", "duration_ms", "detail", "attempts", "would_deny")


def recorded(request_id: str, log: IO[str] | None, admin: Callable[[], AdminAddress]) -> dict[str, Any]:
    """What is known of this request, in the words of the access log: of the log, "" for its last line, or of the
    process at `admin`. Raises click.UsageError where it is not known.
    """
    if log is not None:
        found = _of_log(log, request_id)
        if found is None:
            what = f"the request {request_id}" if request_id else "a line of an access log"
            raise click.UsageError(f"{what} is not in {getattr(log, 'name', 'standard input')}")
        return found
    answer = ask(admin(), "/decisions", [("request", request_id)])
    for decision in answer["decisions"]:
        if decision.get("request_id") == request_id:  # of an older process these are all decisions
            told = {"identity": decision["name"], "time": rfc3339(decision["time"])}
            return {**(answer.get("denial") or {}), **decision, **told}
    raise click.UsageError(
        f"no decision about a request {request_id} is in memory, which has the latest 1,024 of each worker and as many"
        " denials: give the access log with --log FILE"
    )


def _of_log(log: Iterable[str], request_id: str) -> dict[str, Any] | None:
    last = None
    for line in log:
        if request_id in line:
            found = json_object(line)
            if found is not None and all(isinstance(found.get(name), str) for name in _NAMES):
                if found["request_id"] == request_id:
                    return found
                last = found
    return None if request_id else last


def pairs_of(record: Mapping[str, Any]) -> Pairs:
    """The parameters of /explain that ask about the same request. Raises click.UsageError for one without a target."""
    method, authority = record["method"], record["authority"]
    if authority == "-":
        why = f"the request {record['request_id']} named no destination: {record['reason']}"
        raise click.UsageError(printable(why))
    scheme = record.get("scheme") or ("https" if authority.endswith(":443") else "http")  # the log leaves it out
    is_tunnel = method in ("-", "CONNECT")
    return [
        ("method", "CONNECT" if is_tunnel else method),
        ("url", authority if is_tunnel else f"{scheme}://{authority}{record['path']}"),
        ("gateway", record["gateway"]),
        ("listener", record["listener"]),
        ("as", f"{record['namespace']}/{record['service_account']}"),
        *(("group", each) for each in record.get("groups", ())),
        *(("claim", f"{name}={value}") for name, value in record.get("claims", ())),
    ]


def explain_then_and_now(record: Mapping[str, Any], now: Mapping[str, Any], output: str) -> None:
    """Print what was decided then, what would be now, and whether these differ."""
    differs, why = difference(record, now)
    word: tuple[str, str] = ("differs: ", "bold yellow") if differs else ("the same: ", "bold")

    def as_text() -> None:
        print_lines(_then(record), sys.stdout)
        show(now, sys.stdout)
        print_lines([[word, (why, "")]], sys.stdout)

    print_found({"then": record, "now": now, "differs": differs, "difference": why}, output, as_text)


def _then(record: Mapping[str, Any]) -> Iterator[StyledLine]:
    path = "" if record["method"] in ("-", "CONNECT") else record["path"]
    yield [
        (f"request {record['request_id']} of {record['time']}: ", "bold"),
        (f"{record['method']} {record['authority']}{path} by {caller_of(record)}", ""),
        (f" on {record['gateway']}/{record['listener']}", ""),
    ]
    reason, rule = record["reason"], record.get("rule", "-")
    ended = ("let through", "green") if reason == "-" else (reason, "red")
    yield [("then: ", "bold"), ended, (f" by {rule}" if rule != "-" else "", "")]
    yield from ([(f"  {name}: {record[name]}", "")] for name in ("why", "remedy") if record.get(name))
    known = {name: record[name] for name in _ENDING if record.get(name) not in (None, "-", "", [])}
    if known:
        said = (f"{name} {', '.join(map(str, v)) if isinstance(v, list) else v}" for name, v in known.items())
        yield [(f"  {', '.join(said)}", "dim")]
    yield [("now:", "")]


def difference(record: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether names and addresses are decided otherwise now, as a sentence."""
    from egressproxy.operators.explain.decision_diff import DENIED, REFUSED

    reason = record["reason"]
    reason_now = (now.get("error") or {}).get("reason") if now["verdict"] == "denied" else None
    then = "was let through" if reason == "-" else f"ended with {reason}"
    if reason in REFUSED:
        if reason_now is None:
            return True, f"it was denied then ({reason}), and would be allowed now"
        if reason_now != reason:
            why = f"it was denied then ({reason}), and would be denied for another reason now ({reason_now})"
            return True, why
        return False, f"it was denied then, and would be now ({reason})"
    if reason_now is not None:
        return True, f"it {then}, and would be denied now ({reason_now})"
    if reason in DENIED:
        return False, f"names and addresses allow it then and now; {reason} is of a limit or filter, not run here"
    return False, f"it {then}, and would be allowed now"
