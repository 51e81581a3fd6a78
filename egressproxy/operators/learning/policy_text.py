"""Policy text: the manifests with the evidence as comments, and the change of an earlier file. Pure.

Names come from clients and from log files, so every text in a comment is made printable ASCII of one line, and every
value is either checked against a grammar or quoted.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from egressproxy.operators.learning.judgement import Left, LeftOut
from egressproxy.operators.learning.names import domain_of
from egressproxy.operators.learning.policy_plan import Entry, PlannedPolicy, few, requests_of, reversed_name

#: The first line of a file that may be changed later.
MARK: Final = "# Learnt by `egressproxy learn`."
LEFT_OUT: Final = "# Left out:"
#: Lines about what was left out, for each reason.
MAX_LINES: Final = 25
MAX_COMMENT: Final = 400
_PLAIN: Final = re.compile(r"[a-z][a-z0-9_-]*(?:\.[a-z0-9_-]+)*\.[a-z][a-z0-9-]*|[a-z][a-z0-9-]{3,}", re.ASCII)
_WORDS: Final = frozenset({"true", "false", "null"})
_NAMED: Final = re.compile(r"metadata: \{name: (\S+), namespace: (\S+)\}")
_PORTS: Final = re.compile(r"    - ports: \[([0-9, ]*)\]")
_HOST: Final = re.compile(r'      - ("[^"]*"|[^\s#"]+)(?:  # .*)?')


def comment(text: str) -> str:
    """The text as one line of printable ASCII, of bounded length: fit for a comment."""
    safe = text.encode("ascii", "backslashreplace").decode()
    safe = "".join(each if " " <= each <= "~" else f"\\x{ord(each):02x}" for each in safe)
    return safe if len(safe) <= MAX_COMMENT else f"{safe[:MAX_COMMENT]}..."


def scalar(text: str) -> str:
    """The text as a YAML scalar: plain if that is safe, else quoted."""
    return text if _PLAIN.fullmatch(text) and text not in _WORDS else json.dumps(text)


def policy_text(policy: PlannedPolicy) -> str:
    """One EgressPolicy, with the evidence behind each hostname."""
    lines = [_head(policy)]
    for ports, entries in groupby(policy.entries, key=lambda each: each.ports):
        lines += [_ports_line(ports), "      hostnames:", *map(_host_line, entries)]
    return "\n".join(lines) + "\n"


def file_text(about: Sequence[str], policies: Sequence[PlannedPolicy], left_out: Iterable[str]) -> str:
    """A whole file: what it was made of, the policies, and what was left out."""
    head = "\n".join([MARK, *(f"# {comment(line)}" for line in about)]) + "\n"
    return head + "".join(f"---\n{policy_text(each)}" for each in policies) + "\n" + "\n".join(left_out) + "\n"


def left_out_lines(left_out: Sequence[LeftOut], learnt: int) -> Iterator[str]:
    """Comments: what was left out, by reason, names of one client below one domain together."""
    if not left_out:
        yield f"{LEFT_OUT} nothing."
        return
    yield f"{LEFT_OUT} {len(left_out)} of {len(left_out) + learnt} destinations of clients."
    for reason in Left:
        found = [each for each in left_out if each.why is reason]
        if found:
            yield "#"
            yield f"# {reason.value}: {len(found)}"
            lines = _grouped(found)
            yield from lines[:MAX_LINES]
            if len(lines) > MAX_LINES:
                yield f"#   ... and {len(lines) - MAX_LINES} lines more"


def _grouped(found: Iterable[LeftOut]) -> list[str]:
    groups: dict[tuple[str, str, str], list[LeftOut]] = defaultdict(list)
    for each in found:
        domain = domain_of(each.record.host) if each.why is not Left.ADDRESS else each.detail
        groups[str(each.record.client), domain, each.record.client.gateway].append(each)
    ranked = []
    for key, together in groups.items():
        names = [f"{each.record.host}:{each.record.port}" for each in together]
        details = "; ".join(["", *sorted({each.detail for each in together if each.detail})[:2]])
        about = requests_of([each.record for each in together], key[0])
        ranked.append(
            (-sum(each.record.count for each in together), key, comment(f"#   {few(names)}  {about}{details}"))
        )
    return [text for _, _, text in sorted(ranked)]


def _head(policy: PlannedPolicy) -> str:
    namespace, _, gateway = policy.gateway.partition("/")
    fields = zip(("namespace", "trustDomain", "serviceAccount"), policy.subject, strict=True)
    named = ", ".join(f"{key}: {scalar(value)}" for key, value in fields if value)
    subjects = f"\n  subjects: [{{{named}}}]" if named else ""
    replaces = f"\n  replaces: {{name: {scalar(policy.replaces)}}}" if policy.replaces else ""
    return f"""\
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {{name: {scalar(policy.name)}, namespace: {scalar(namespace)}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: {scalar(gateway)}}}]{subjects}{replaces}
  destinations:
    allow:"""


def _ports_line(ports: Iterable[int]) -> str:
    return f"    - ports: [{', '.join(map(str, ports))}]"


def _host_line(entry: Entry) -> str:
    return f"      - {scalar(entry.hostname)}  # {comment(entry.evidence())}"


# --- the change of an earlier file -----------------------------------------------------------------------------------


def changed(text: str, new: Sequence[PlannedPolicy], gone: Collection[tuple[str, str, tuple[int, ...]]]) -> str:
    """The text of an earlier file without entries that are gone, and with new ones; its other lines stay as they are.

    `gone` are policy (namespace/name), hostname and ports. Raises ValueError for a line that `learn` has not written.
    """
    body, left, tail = text.partition(f"\n{LEFT_OUT}")
    wanted = {f"{each.gateway.partition('/')[0]}/{each.name}": each for each in new}
    made = []
    for document in body.rstrip("\n").split("\n---\n"):
        if named := _NAMED.search(document):
            policy = f"{_value(named[2])}/{_value(named[1])}"
            entries = wanted.pop(policy).entries if policy in wanted else ()
            document = _changed_document(document, policy, entries, gone)
        made.append(document)
    made += [policy_text(each).rstrip("\n") for each in wanted.values()]
    return "\n---\n".join(made) + "\n" + left + tail


def _changed_document(
    document: str, policy: str, new: Iterable[Entry], gone: Collection[tuple[str, str, tuple[int, ...]]]
) -> str:
    lines: list[str] = []
    groups: dict[tuple[int, ...], dict[str, str]] = defaultdict(dict)
    ports: tuple[int, ...] | None = None
    for line in document.split("\n"):
        if found := _PORTS.fullmatch(line):
            ports = tuple(int(each) for each in found[1].split(",") if each.strip())
        elif ports is None:
            lines.append(line)
        elif host := _HOST.fullmatch(line):
            name = _value(host[1])
            if (policy, name, ports) not in gone:
                groups[ports][name] = line
        elif line.strip() and line != "      hostnames:":
            raise ValueError(f"a line that `learn` has not written: {line.strip()[:80]}")
    for entry in new:
        groups[entry.ports][entry.hostname] = _host_line(entry)
    if lines[-1].startswith("    allow:"):
        lines[-1] = "    allow:" if groups else "    allow: []"
    for numbers, hosts in sorted(groups.items()):
        lines += [_ports_line(numbers), "      hostnames:"]
        lines += [hosts[name] for name in sorted(hosts, key=reversed_name)]
    return "\n".join(lines)


def _value(written: str) -> str:
    return str(json.loads(written)) if written.startswith('"') else written
