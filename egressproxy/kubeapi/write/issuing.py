"""CAs of interception that are made, listed and withdrawn through the admin API, in the process that loads.

A query reads the configuration in files and in the state folder. It answers with JSON: what clients are shown, and the
Secret to write. The private key is in that Secret alone.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from pydantic import ValidationError

from egressproxy.config.compile.certificates import dns_constraints
from egressproxy.config.compile.policies.signing_cas import ISSUED_TYPE, IssuedCa, issued_cas
from egressproxy.config.explanations import explain, path_text
from egressproxy.config.reading.load import ResourceSet, load
from egressproxy.config.reading.problems import ConfigError
from egressproxy.config.resources.core import Secret
from egressproxy.config.resources.policy import EgressPolicy, InterceptSubject
from egressproxy.gateway.leaf_certificates.minting import DNS_NAME, new_ca
from egressproxy.kubeapi.write.refusals import unreadable
from egressproxy.kubeapi.write.write import WriteRefused
from egressproxy.model.encoding import rfc3339
from egressproxy.processes.loader.request import read_request
from egressproxy.processes.pickling import loads

#: A name of a Secret that is a label, too: it becomes part of a file's name, and of a common name.
_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
MAX_PERMITTED: Final = 64
#: Of a CA, in seconds.
MIN_LIFETIME_S: Final = 60.0
_DAY_S: Final = 86_400.0


class IssuingQuery(NamedTuple):
    """`verb` is "new", "list", "withdraw" or "forget". `policy` is namespace/name, "" for all. `subject` has
    the fields of an InterceptSubject. `lifetime_s` 0: the longest; `permitted` (): the names of the policy.
    """

    verb: str
    policy: str = ""
    name: str = ""
    subject: str = "{}"
    lifetime_s: float = 0.0
    permitted: tuple[str, ...] = ()


def answer(request: bytes) -> bytes:
    """The answer to `(request for a loading, IssuingQuery as a tuple)`: `refused` (code, reason, message), or `shown`
    and, except for a list, `write` (verb, namespace, name, manifest).
    """
    loading, written = loads(request)
    asked, query = read_request(loading), IssuingQuery(*written)
    try:
        try:
            resources = load(asked.paths, asked.state)
        except ConfigError as error:
            raise unreadable(error.problems) from None
        return json.dumps(_answer(resources, query)).encode()
    except WriteRefused as refused:
        return json.dumps({"refused": [refused.code, refused.reason, str(refused)]}).encode()


def _answer(resources: ResourceSet, query: IssuingQuery) -> dict[str, Any]:
    if query.verb == "list":
        policies = [_policy(resources, query)] if query.policy else resources.of(EgressPolicy)
        return {"shown": {"cas": [_shown(policy, each) for policy in policies for each in _sorted(resources, policy)]}}
    policy = _policy(resources, query)
    if query.verb == "new":
        return _new(resources, policy, query)
    found = next((each for each in issued_cas(resources, policy) if each.secret.name == query.name), None)
    if found is None:
        names = ", ".join(each.secret.name for each in _sorted(resources, policy)[:8])
        raise WriteRefused(404, "NotFound", f"{policy} has no CA {query.name[:63]!r}; it has {names or 'none'}")
    if query.verb == "forget":
        return {"shown": _shown(policy, found), "write": ["delete", found.secret.namespace, found.secret.name, None]}
    chain = found.secret.value("tls.crt")
    manifest = _manifest(policy, query.name, found.subject, chain.reveal() if chain is not None else b"", None)
    shown = {**_shown(policy, found), "state": "withdrawn"}
    return {"shown": shown, "write": ["replace", found.secret.namespace, found.secret.name, manifest]}


def _policy(resources: ResourceSet, query: IssuingQuery) -> EgressPolicy:
    namespace, slash, name = query.policy.partition("/")
    found = resources.find(EgressPolicy, namespace, name) if slash else None
    if found is None:
        raise WriteRefused(404, "NotFound", f"there is no EgressPolicy {query.policy[:320]!r}: write NAMESPACE/NAME")
    return found


def _sorted(resources: ResourceSet, policy: EgressPolicy) -> list[IssuedCa]:
    return sorted(issued_cas(resources, policy), key=lambda each: each.secret.name)


def _new(resources: ResourceSet, policy: EgressPolicy, query: IssuingQuery) -> dict[str, Any]:
    """Raises WriteRefused."""
    section = policy.spec.intercept
    if section is None or section.issuing is None:
        raise WriteRefused(403, "Forbidden", f"{policy} lets nobody make a CA: write intercept.issuing there")
    if not _NAME.fullmatch(query.name):
        raise _invalid("the name of a CA is a label: up to 63 of a-z, 0-9 and -, such as sandbox-1")
    try:
        subject = InterceptSubject.model_validate_json(query.subject)
    except ValidationError as error:
        details = error.errors()[0]
        message, remedy = explain(details, InterceptSubject, details["loc"], None, True)
        field = path_text(details["loc"])
        raise _invalid(f"{field}: {message}: {remedy}"[:300].removeprefix(": ").removesuffix(": ")) from None
    longest_s = section.issuing.max_lifetime.seconds
    lifetime_s = query.lifetime_s or longest_s
    if not MIN_LIFETIME_S <= lifetime_s <= longest_s:
        most = f"intercept.issuing.maxLifetime of {policy} is {section.issuing.max_lifetime}"
        raise _invalid(f"the lifetime has to be at least a minute, and {most}")
    permitted = tuple(_permitted(section.hostnames, query))
    known = list(issued_cas(resources, policy))
    for each in known:
        if each.subject == subject and not each.is_withdrawn:
            message = f"CA {each.secret.name} is for this subject: withdraw it first (`egressproxy ca revoke`)"
            raise WriteRefused(409, "Conflict", message)
    old = resources.find(Secret, policy.namespace, query.name)
    is_free = old is None or any(each.secret is old and each.is_withdrawn for each in known)
    if not is_free:
        message = f"there is a Secret {policy.namespace}/{query.name}: choose another name"
        raise WriteRefused(409, "AlreadyExists", message)
    if old is None and len(known) >= section.issuing.max_count:
        most = f"intercept.issuing.maxCount of {policy} is {section.issuing.max_count}, with withdrawn ones"
        raise WriteRefused(403, "Forbidden", f"{most}: forget some (`egressproxy ca revoke --forget`)")
    common_name = f"egressproxy {query.name[:40]} {secrets.token_hex(3)}"
    pem, key = new_ca(common_name, time.time(), lifetime_s / _DAY_S, permitted, path_length=0)
    manifest = _manifest(policy, query.name, subject, pem.encode(), key.reveal())
    shown = {**_facts(policy, query.name, subject, pem.encode()), "state": "in force", "certificate": pem}
    verb = "create" if old is None else "replace"
    return {"shown": shown, "write": [verb, policy.namespace, query.name, manifest]}


def _permitted(hostnames: tuple[str, ...], query: IssuingQuery) -> Iterator[str]:
    """The names that the CA may sign for. Raises WriteRefused for one that the policy does not intercept."""
    bases = tuple(dict.fromkeys(each.removeprefix("*.") for each in hostnames))
    if len(query.permitted) > MAX_PERMITTED:
        raise _invalid(f"a CA is for at most {MAX_PERMITTED} names")
    for name in query.permitted or bases:
        is_below = any(each == "*" or name == each or name.endswith(f".{each}") for each in bases)
        if not DNS_NAME.fullmatch(name) or not is_below:
            raise _invalid(f"{name[:253]!r} is not below a name in intercept.hostnames")
        yield name


def _manifest(
    policy: EgressPolicy, name: str, subject: InterceptSubject, chain_pem: bytes, key_pem: bytes | None
) -> dict[str, Any]:
    data = {"policy": policy.name.encode(), "subject": _json(subject).encode(), "tls.crt": chain_pem}
    if key_pem is not None:
        data["tls.key"] = key_pem
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": policy.namespace},
        "type": ISSUED_TYPE,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _shown(policy: EgressPolicy, ca: IssuedCa) -> dict[str, Any]:
    chain = ca.secret.value("tls.crt")
    facts = _facts(policy, ca.secret.name, ca.subject, chain.reveal() if chain is not None else b"")
    is_over = facts["notAfter"] and facts["notAfter"] <= rfc3339(time.time())
    return {**facts, "state": "withdrawn" if ca.is_withdrawn else "expired" if is_over else "in force"}


def _facts(policy: EgressPolicy, name: str, subject: InterceptSubject, chain_pem: bytes) -> dict[str, Any]:
    shown = {"name": name, "policy": policy.full_name, "subject": json.loads(_json(subject))}
    try:
        certificate = x509.load_pem_x509_certificate(chain_pem)
    except ValueError:
        return {**shown, "sha256": "", "notAfter": "", "permitted": []}
    return {
        **shown,
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
        "notAfter": rfc3339(certificate.not_valid_after_utc.timestamp()),
        "permitted": dns_constraints(certificate)[0],
    }


def _json(subject: InterceptSubject) -> str:
    return subject.model_dump_json(by_alias=True, exclude_none=True)


def _invalid(message: str) -> WriteRefused:
    return WriteRefused(422, "Invalid", message)
