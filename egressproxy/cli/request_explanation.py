"""`egressproxy explain --request`: what was decided about a request that has ended, and what would be decided now."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import click

from egressproxy.cli.asking import Pairs, ask
from egressproxy.cli.denials import caller_of
from egressproxy.cli.explanation import show
from egressproxy.cli.styled_lines import StyledLine, print_lines
from egressproxy.model.encoding import json_object, rfc3339

#: Of a line of the access log, what is shown of how the request ended.
_ENDING = ("status", "upstream", "route", "backend", "duration_ms", "detail", "attempts", "would_deny")


def recorded(request_id: str, log: IO[str] | None, admin: Callable[[], tuple[str, int]]) -> dict[str, Any]:
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
    decisions = [each for each in answer["decisions"] if each.get("request_id") == request_id]
    if not decisions:
        raise click.UsageError(
            f"no decision about a request {request_id} is in memory, which has the latest 1,024 of each worker and as"
            " many denials: give the access log with --log FILE"
        )
    decision, denial = decisions[0], answer.get("denial") or {}
    return {**denial, **decision, "identity": decision["name"], "time": rfc3339(decision["time"])}


def _of_log(log: Iterable[str], request_id: str) -> dict[str, Any] | None:
    last = None
    needle = f'"{request_id}"'
    for line in log:
        if needle in line or not request_id:
            found = json_object(line)
            if found is not None and {"authority", "gateway", "request_id"} <= found.keys():
                if found["request_id"] == request_id:
                    return found
                last = found
    return None if request_id else last


def pairs_of(record: Mapping[str, Any]) -> Pairs:
    """The parameters of /explain that ask about the same request. Raises click.UsageError for one without a target."""
    method, authority = str(record["method"]), str(record["authority"])
    if authority == "-":
        raise click.UsageError(f"the request {record['request_id']} named no destination: {record['reason']}")
    scheme = record.get("scheme") or ("https" if authority.endswith(":443") else "http")  # the log leaves it out
    is_tunnel = method in ("-", "CONNECT")
    pairs = [
        ("method", "CONNECT" if is_tunnel else method),
        ("url", authority if is_tunnel else f"{scheme}://{authority}{record['path']}"),
        ("gateway", str(record["gateway"])),
        ("listener", str(record["listener"])),
        ("as", f"{record['namespace']}/{record['service_account']}"),
    ]
    pairs += [("group", each) for each in record.get("groups", ())]
    return pairs + [("claim", f"{name}={value}") for name, value in record.get("claims", ())]


def explain_then_and_now(record: Mapping[str, Any], now: Mapping[str, Any], output: str) -> None:
    """Print what was decided then, what would be now, and whether these differ."""
    differs, why = difference(record, now)
    if output == "json":
        click.echo(json.dumps({"then": record, "now": now, "differs": differs, "difference": why}, indent=2))
        return
    print_lines(_then(record), sys.stdout)
    click.echo("now:")
    show(now, sys.stdout)
    print_lines(
        [[("differs: " if differs else "the same: ", "bold yellow" if differs else "bold"), (why, "")]], sys.stdout
    )


def _then(record: Mapping[str, Any]) -> Iterator[StyledLine]:
    path = "" if record["method"] in ("-", "CONNECT") else record["path"]
    yield [
        (f"request {record['request_id']} of {record['time']}: ", "bold"),
        (f"{record['method']} {record['authority']}{path} by {caller_of(dict(record))}", ""),
        (f" on {record['gateway']}/{record['listener']}", ""),
    ]
    reason, rule = record["reason"], record.get("rule", "-")
    by = f" by {rule}" if rule != "-" else ""
    yield [
        ("then: ", "bold"),
        ("let through" if reason == "-" else reason, "green" if reason == "-" else "red"),
        (by, ""),
    ]
    for name in ("why", "remedy"):
        if record.get(name):
            yield [(f"  {name}: {record[name]}", "")]
    known = [(name, record[name]) for name in _ENDING if record.get(name) not in (None, "-", "")]
    if known:
        yield [("  ", ""), (", ".join(f"{name} {_text(value)}" for name, value in known), "dim")]


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def difference(record: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether names and addresses are decided otherwise now, as a sentence."""
    from egressproxy.operators.explain.decision_diff import DENIED, REFUSED

    reason, error = record["reason"], now.get("error") or {}
    is_denied_now = now["verdict"] == "denied"
    then = "was let through" if reason == "-" else f"ended with {reason}"
    if reason in REFUSED:
        if not is_denied_now:
            return True, f"it was denied then ({reason}), and would be allowed now"
        if error.get("reason") != reason:
            return (
                True,
                f"it was denied then ({reason}), and would be denied for another reason now ({error.get('reason')})",
            )
        return False, f"it was denied then, and would be now ({reason})"
    if is_denied_now:
        return True, f"it {then}, and would be denied now ({error.get('reason')})"
    if reason in DENIED:
        return (
            False,
            f"names and addresses allow it then and now; {reason} is of a limit or filter, which is not run here",
        )
    return False, f"it {then}, and would be allowed now"
