"""An explanation as lines of text, each with a label, in the order in which the parts of the gateway see a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

from egressproxy.cli.holds import hold_line
from egressproxy.cli.styled_lines import print_lines

#: Label, text, and a style for terminals.
Line = tuple[str, str, str]

_WIDTH: Final = 14
#: The kind of backend that is not named.
_OURS: Final = "Backend.egressproxy.io"
_STYLES: Final = {"allowed": "bold green", "denied": "bold red", "failed": "bold yellow"}


def show(found: Mapping[str, Any], file: IO[str]) -> None:
    """Print an explanation; `found` is the response of /explain."""
    print_lines((((f"{label:<{_WIDTH}}", "bold"), (text, style)) for label, text, style in lines(found)), file)


def lines(found: Mapping[str, Any]) -> Iterator[Line]:
    """Label, text and style of each line; `found` is the response of /explain."""
    request, listener, verdict = found["request"], found["listener"], found["verdict"]
    yield verdict, f"{request['method']} {request['url']}", _STYLES[verdict]
    yield from _error(found.get("error"))
    addresses = ", ".join(f"[{ip}]" if ":" in ip else ip for ip in listener["addresses"])
    host = f" for {listener['hostname']}" if listener["hostname"] else ""
    where = (
        f"{listener['gateway']} {listener['name']}: {listener['protocol']} on {addresses} port {listener['port']}{host}"
    )
    yield "listener", where, ""
    if "tls" in listener:
        yield "  tls", _listener_tls(listener["tls"]), ""
    if "identity" in listener:
        yield "  clients", _identity(listener["identity"]), ""
    yield from _route(found["route"], found["runnerUp"])
    yield from _policy(found["policy"])
    for each in found["filters"]:
        yield "filter", _filter(each), ""
        yield from _limits(each, "  limit")
        yield from _decision(each, "  decision")
    for each in found["approvals"]:
        yield "approval", f"{each['says']} ({each['filter']}, {each['from']})", "yellow"
    for each in found.get("waiting", ()):
        yield "  waits", hold_line(each), ""
    for backend in found["backends"]:
        yield from _backend(backend, found.get("error"))
    limits = [f"{name} {value}" for name, value in found["limits"].items() if value]
    yield "limits", ", ".join(limits) or "none", ""
    if not found["backends"]:
        yield "timeouts", _timeouts(found["timeouts"]), ""
    for note in found["notes"]:
        yield "note", note, "dim"


def _listener_tls(tls: Mapping[str, Any]) -> str:
    certificates = f", certificates {_listed(tls['certificates'])}" if tls["certificates"] else ""
    clients = f", client certificates {tls['clientCertificates']}" if "clientCertificates" in tls else ""
    return f"{tls['mode']}{certificates}{clients}"


def _identity(identity: Mapping[str, Any]) -> str:
    """How the clients of a listener are known."""
    count = identity.get("gatewayKeys", 0)
    sources = [f"other gateways say who they are (X-Egress-Identity, {count} key{'s' if count > 1 else ''})"] * bool(
        count
    )
    if "trustDomains" in identity:
        sources.append(f"their certificates say who they are (SPIFFE ids of {_listed(identity['trustDomains'])})")
    if "issuers" in identity:
        issuers = _listed([each["issuer"] for each in identity["issuers"]])
        sources.append(f"tokens of {issuers}, in {identity.get('header', 'the usual field')}")
    if "users" in identity:
        sources.append(f"passwords of {identity['users']} user{'s' if identity['users'] > 1 else ''}")
    if "apiKeys" in identity:
        sources.append(f"{identity['apiKeys']} API key{'s' if identity['apiKeys'] > 1 else ''}")
    if "addresses" in identity:
        sources.append(f"addresses in {identity['addresses']} network{'s' if identity['addresses'] > 1 else ''}")
    if "proxyProtocol" in identity:
        sources.append(f"PROXY headers of {_listed(identity['proxyProtocol'])} say the address")
    if identity.get("required"):
        sources.append("others are refused (407 or 401)")
    return "; ".join(sources)


def _error(error: Mapping[str, Any] | None) -> Iterator[Line]:
    if error is None:
        return
    yield "why", f"{error['status']} {error['reason']}: {error['message']}", "red"
    if "grpcStatus" in error:
        yield "gRPC", f"a call is told {error['grpcStatus']}", ""
    if "rule" in error:
        yield "decided by", error["rule"], ""
    if "detail" in error:
        yield "detail", error["detail"], ""
    for near in error.get("near", ()):
        yield "near", _rule(near), ""
    if "remedy" in error:
        yield "to do", error["remedy"], "green"


def _route(route: Mapping[str, Any] | None, runner_up: Mapping[str, Any] | None) -> Iterator[Line]:
    if route is None:
        yield "route", "-", ""
        return
    if route["name"] == "-":
        yield "route", route["why"], ""
        return
    yield "route", _rule(route), "cyan"
    if runner_up is None:
        yield "", route["why"], ""
    else:
        yield "runner-up", _rule(runner_up), ""
        yield "", f"the winner comes first: {route['why']}", ""


def _rule(rule: Mapping[str, Any]) -> str:
    name = f" {rule['ruleName']}" if rule.get("ruleName") else ""
    text = f"{rule['kind']} {rule['name']} rule {rule['rule']}{name}"
    if "match" in rule:
        text += f": {rule['hostname'] or 'every host'}, {rule['match']}"
    return text


def _policy(policy: Mapping[str, Any]) -> Iterator[Line]:
    names = ", ".join(policy["policies"])
    yield "policy", f"{policy['decision']} (mode {policy['mode']}{f'; {names}' if names else ''})", ""
    for entry in policy["entries"]:
        fields = ", ".join(f"{key}: {_listed(value)}" for key, value in entry.items() if key != "policy")
        yield "", f"allowed by an entry of {entry['policy']}: {fields}", ""
    counted = policy.get("counted")
    patterns = [name for entry in policy["entries"] for key in ("hostnames", "cidrs") for name in entry.get(key, ())]
    if counted and patterns != [counted["entry"]]:  # else the line above says it
        yield "", f"in metrics and the log: policy {counted['policy']}, entry {counted['entry']}", "dim"
    denied = policy.get("wouldDeny")
    if denied:
        yield "", f"would deny: {denied.get('message', denied['reason'])}", "yellow"
        if "remedy" in denied:
            yield "", denied["remedy"], "green"


def _backend(backend: Mapping[str, Any], error: Mapping[str, Any] | None) -> Iterator[Line]:
    destination = f" {backend['destination']}" if "destination" in backend else ""
    address = f" {backend['host']}:{backend['port']}" if "host" in backend else ""
    share = f", {backend['share']:.1%} of the requests" if backend["share"] < 1 else ""
    failover = backend.get("failover")
    if failover is not None:
        aside = f", put aside for {failover['asideFor']}" if "asideFor" in failover else ""
        share = f", priority {failover['priority']} of Failover {failover['name']}{share}{aside}"
    kind = backend.get("kind", _OURS)
    of = f" ({kind})" if kind not in (_OURS, "Service") else ""  # another group may have a Backend of the same name
    yield "backend", f"{backend['name']}{of}{destination}{address}{share}", "cyan"
    if backend.get("error") != error:
        yield from _error(backend.get("error"))
    if "wouldDeny" in backend:
        yield "  would deny", backend["wouldDeny"]["message"], "yellow"
        yield "", backend["wouldDeny"]["detail"], ""
    if "becomes" in backend.get("ai", {}):
        yield "  ai", backend["ai"]["becomes"], ""
    yield from _upstream(backend)
    for each in backend["filters"]:
        yield "  filter", _filter(each), ""
        yield from _limits(each, "    limit")
        yield from _decision(each, "    decision")
    for each in backend["credentials"]:
        missing = "" if each["present"] else ", which is MISSING"
        yield "  credential", f"Secret {each['secret']}{missing} (filter {each['filter']} of {each['from']})", ""
    for each in backend.get("mirrors", ()):
        share = "every request" if each["share"] == 1 else f"{each['share'] * 100:.4g}% of the requests"
        denied = f"; {each['denied']}" if "denied" in each else ""
        denied = f"; would be denied: {each['wouldDeny']}" if "wouldDeny" in each else denied
        yield "  mirror", f"{each['name']}, {share}{denied}", "yellow" if denied else ""
    yield "  timeouts", _timeouts(backend["timeouts"]), ""
    if "sourceAddress" in backend:
        said = dict(backend["sourceAddress"])
        owner = said.pop("from")
        yield "  source", f"{', '.join(said.values()) or 'none'} (sourceAddress of {owner})", ""
    if "connections" in backend:
        yield "  connections", _connections(backend["connections"]), ""


def _amount(number: float) -> str:
    """What is left of a limit: whole numbers as such, others with two digits, or four where it is less than one."""
    text = f"{number:.4f}" if abs(number) < 1 else f"{number:.2f}"
    return text.rstrip("0").rstrip(".") or "0"


def _limits(each: Mapping[str, Any], label: str) -> Iterator[Line]:
    for limit in each.get("limits", ()):
        reset = f"; all of it again in {limit['resetSeconds']:.0f} s" if limit["resetSeconds"] else ""
        yield label, f"{limit['name']}: {_amount(limit['left'])} left of {limit['allows']}{reset}", ""


def _decision(each: Mapping[str, Any], label: str) -> Iterator[Line]:
    if "decision" in each:
        yield label, each["decision"], ""


def _upstream(backend: Mapping[str, Any]) -> Iterator[Line]:
    if "dns" in backend:
        yield "  dns", backend["dns"], ""
    if "cnames" in backend:
        yield "", f"leads through {', '.join(backend['cnames'])}", ""
    for each in backend.get("addresses", ()):
        style = "" if each["verdict"] == "dial" else "red"
        yield "  address", f"{each['verdict']:<7}{each['address']} port {each['port']}: {each['why']}", style
        if "reverse" in each:
            yield "", f"names of {each['address']}: {each['reverse']}", style
    for each in backend.get("endpoints", ()):
        left = f", for {each['outForSeconds']:g} s more" if "outForSeconds" in each else ""
        style = "" if each["health"] == "healthy" else "red"
        yield "  endpoint", f"{each['health']:<10}{each['address']}{left}", style
    if "openCircuits" in backend:
        yield "  circuits", f"open: {', '.join(backend['openCircuits'])}", "red"
    if backend.get("tls"):
        yield "  tls", _tls(backend["tls"]), ""
        if failure := backend["tls"].get("latestFailure"):
            yield "", f"{failure['secondsAgo']:g} s ago: {failure['message']}", "red"
            yield "", failure["detail"], "red"
            if failure["remedy"]:
                yield "", f"remedy: {failure['remedy']}", ""
    elif "tls" in backend:
        yield "  tls", "none from the gateway", ""
    if backend.get("noProxy"):
        yield "  parent", "none: noProxy lists the destination", ""
    if "parent" in backend:
        parent = backend["parent"]
        by = f" (parent of {backend['parentBy']})" if "parentBy" in backend else ""
        kind = f", {parent['protocol']}" if "protocol" in parent else ""
        yield "  parent", f"{parent['name']}{kind}{by}", ""
        if backend.get("fallbacks"):
            yield "", f"where it cannot be connected to: {', '.join(backend['fallbacks'])}", ""
        for name, left_s in backend.get("parentsAside", {}).items():
            yield "", f"{name} could not be connected to, and is put aside for {left_s:g} s more", "red"
        if "identity" in parent:
            yield "", "is told who the client is (X-Egress-Identity, signed)", ""
        if parent["credentials"]:
            how = "RFC 1929, if it asks for them" if "protocol" in parent else "Basic"
            yield "", f"gets the username and password of {parent['credentials']} ({how})", ""
        else:
            yield "", "gets no credentials; if it asks for them (parent_auth), set parent.credentialsRef", "dim"
        for label, text, style in _upstream(parent):
            yield label and f"  {label}", text, style  # the parent's own lines are indented below it


def _tls(tls: Mapping[str, Any]) -> str:
    parts = [f"SNI {tls['sni']}" if tls["sni"] else "no SNI"]
    if tls["verified"]:
        parts += [f"CA {tls['ca']}", f"names {_listed(tls['names'])}"]
    else:
        parts.append("NOT VERIFIED")
    parts.append(f"TLS {tls['minVersion']} or later")
    if "clientCertificate" in tls:
        parts.append(f"client certificate {tls['clientCertificate']}")
    if "pins" in tls:
        parts.append(f"{tls['pins']} pins")
    if "crl" in tls:
        parts.append("revocation lists")
    return ", ".join(parts)


def _filter(each: Mapping[str, Any]) -> str:
    more = f", left out: {each['skipped']}" if "skipped" in each else ", failOpen" if each["failOpen"] else ""
    kind = each["type"].removeprefix("egressproxy.io/")
    return f"{each['phase']:<17} {each['name']} ({kind}) of {each['from']}, priority {each['priority']}{more}"


def _timeouts(timeouts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {f'{seconds:g} s' if seconds else 'none'}" for name, seconds in timeouts.items())


def _connections(limits: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {str(value).lower()}"
        if isinstance(value, bool)
        else f"{name} {value:g}{' s' if name == 'maxAge' else ''}"
        for name, value in limits.items()
    )


def _listed(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
