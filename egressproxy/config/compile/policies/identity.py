"""EgressPolicy `identity`: the accepted tokens, passwords, API keys and addresses of a listener.

The most specific policy decides each of `token`, `basic`, `apiKeys` and `address`. An unreadable section closes the
place, since clients could not be identified. An API key whose record is unusable is left out alone. Sources: RFC 7517
(key sets), Kubernetes v1 Pod (podIPs, hostNetwork).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_network
from time import time
from typing import Any

from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.resources.core import Pod
from egressproxy.config.resources.identity import CertificateIdentity, TokenIdentity, TokenIssuer
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.identity.passwords import hash_problem
from egressproxy.ir.identity import AddressClientIR, ApiKeyIR, IdentityIR, TokenIssuerIR
from egressproxy.model.authority import read_key_uri
from egressproxy.model.secret import SecretBytes

#: The sections of `identity` that this module reads.
SECTIONS = ("certificate", "token", "basic", "api_keys", "address", "proxy_protocol")
#: The entry of a Secret in htpasswd format.
_HTPASSWD = ".htpasswd"
MAX_USERS = 10_000
MAX_API_KEYS = 10_000


def read_identity(
    chosen: Mapping[str, EgressPolicy], required: bool | None, references: References, unenforceable: dict[str, None]
) -> IdentityIR | None:
    """The identity settings from the policies `chosen` for SECTIONS, or None. `unenforceable` gets read errors."""
    if not chosen and not required:
        return None
    issuers: list[TokenIssuerIR] = []
    users: tuple[tuple[str, SecretBytes], ...] = ()
    users_of = ""
    token, address, senders = (_written(chosen, section) for section in ("token", "address", "proxy_protocol"))
    unread: dict[str, None] = {}
    policy = chosen.get("token")
    for at, each in enumerate(token.issuers if token is not None else ()):
        assert policy is not None  # it has the section
        try:
            issuers.append(_issuer(policy, each, references, f"issuers[{at}]"))
        except UnresolvedRef as unresolved:
            unread[f"spec.identity.{unresolved.field} of {policy}: {unresolved.with_hint}"] = None
    policy = chosen.get("basic")
    if policy is not None:
        try:
            users, users_of = _users(policy, references)
        except UnresolvedRef as unresolved:
            unread[f"spec.identity.basic.secretRef of {policy}: {unresolved.with_hint}"] = None
    api_keys: tuple[ApiKeyIR, ...] | None = None
    policy = chosen.get("api_keys")
    if policy is not None:
        try:
            api_keys, _ = _api_keys(policy, references)
        except UnresolvedRef as unresolved:
            unread[f"spec.identity.{unresolved.field} of {policy}: {unresolved.with_hint}"] = None
    addresses: list[AddressClientIR] = []
    if address is not None:
        addresses = [
            AddressClientIR(tuple(client.cidrs), client.namespace, client.service_account) for client in address.clients
        ]
        try:
            addresses += _pods(references.pods()) if address.pods else ()
        except UnresolvedRef as unresolved:
            unread[f"spec.identity.address.pods of {chosen['address']}: {unresolved.with_hint}"] = None
    if unread:
        unenforceable |= unread
        return IdentityIR(is_required=True)
    return IdentityIR(
        is_required=bool(issuers or users or api_keys is not None) if required is None else required,
        issuers=tuple(issuers),
        token_field=token.header or "" if token is not None else "",
        users=users,
        users_of=users_of,
        addresses=tuple(addresses),
        claims=tuple(sorted(set(token.forward_claims))) if token is not None else (),
        senders=senders.from_ if senders is not None else (),
        trust_domain=own_trust_domain(_written(chosen, "certificate"), token),
        api_keys=api_keys,
        exchanged_at=exchanged_at(chosen["token"]) if token is not None else (),
    )


def exchanged_at(policy: EgressPolicy) -> tuple[str, ...]:
    """The backends ("namespace/name") that the policy lets have tokens of clients."""
    token = policy.spec.identity.token if policy.spec.identity is not None else None
    names = token.exchange_at if token is not None else ()
    return tuple(sorted({each if "/" in each else f"{policy.namespace}/{each}" for each in names}))


def _written(chosen: Mapping[str, EgressPolicy], section: str) -> Any:
    policy = chosen.get(section)
    return getattr(policy.spec.identity, section) if policy is not None else None


def own_trust_domain(certificate: CertificateIdentity | None, token: TokenIdentity | None) -> str:
    """The gateway's own trust domain: the first of `trustDomains`, else the first issuer's; "" for none."""
    if certificate is not None and certificate.trust_domains:
        return certificate.trust_domains[0]
    domains = (each.trust_domain for each in token.issuers if each.says_namespaces) if token is not None else iter(())
    return next(domains, None) or ""


def section_of(section: str, policy: EgressPolicy) -> EgressPolicy | None:
    """The policy, if it has this section of `identity`."""
    return policy if getattr(policy.spec.identity, section, None) is not None else None


def required_of(policy: EgressPolicy) -> bool | None:
    """The policy's own `identity.required`, or None."""
    return policy.spec.identity.required if policy.spec.identity is not None else None


def unusable_keys(policy: EgressPolicy, references: References) -> Iterator[str]:
    """The weak or malformed keys in the policy's key sets, and the API keys, that are not used: a sentence for each
    set, and for each API key.
    """
    if policy.spec.identity is not None and policy.spec.identity.api_keys is not None:
        with suppress(UnresolvedRef):  # the place is closed, and reported elsewhere
            yield from _api_keys(policy, references)[1]
    token = policy.spec.identity.token if policy.spec.identity is not None else None
    for position, written in enumerate(token.issuers if token is not None else ()):
        if written.jwks_ref is None:
            continue
        from egressproxy.identity.key_sets import UnusableKeySet, read_key_set

        try:
            left_out = read_key_set(references.data(policy, written.jwks_ref, "jwks.json")).unusable
        except (UnresolvedRef, UnusableKeySet):  # the place is closed, and reported elsewhere
            continue
        if left_out:
            name = references.names(policy, (written.jwks_ref,))
            yield (
                f"spec.identity.token.issuers[{position}].jwksRef: keys of {name} cannot be used, and tokens by them "
                f"are refused: {'; '.join(left_out)}."
            )


def _issuer(policy: EgressPolicy, written: TokenIssuer, references: References, where: str) -> TokenIssuerIR:
    """`where`: the place in `token`. Raises UnresolvedRef."""
    # Here, since few configurations have tokens; `preparations` of the loader knows it.
    from egressproxy.identity.key_sets import UnusableKeySet, read_key_set

    keys, address, path, ca_pem = "", ("", 0), "", ""
    try:
        if written.jwks_ref is not None:
            field = "jwksRef"
            keys = read_key_set(references.data(policy, written.jwks_ref, "jwks.json")).text
        elif written.jwks_uri is not None:
            field = "caCertificateRefs"
            address, path = read_key_uri(written.jwks_uri)
            ca_pem = "".join(references.ca_bundle(policy, ref) for ref in written.ca_certificate_refs)
    except UnusableKeySet as problem:
        assert written.jwks_ref is not None
        name = references.names(policy, (written.jwks_ref,))
        raise UnresolvedRef("InvalidKeySet", f"{name}: {problem}", field=f"token.{where}.jwksRef") from None
    except UnresolvedRef as unresolved:
        raise unresolved.copy(f"token.{where}.{field}") from None
    mapped = written.claim_mappings
    return TokenIssuerIR(
        written.issuer,
        written.audiences,
        keys,
        address,
        path,
        ca_pem,
        written.service_accounts,
        mapped.namespace or "",
        mapped.service_account or "",
        mapped.groups,
        written.trust_domain or "",
        references.names(policy, written.ca_certificate_refs),
    )


def _users(policy: EgressPolicy, references: References) -> tuple[tuple[tuple[str, SecretBytes], ...], str]:
    """Users and hashes: entries of a Secret, or lines of `.htpasswd`; and "namespace/name". Raises UnresolvedRef."""
    assert policy.spec.identity is not None
    assert policy.spec.identity.basic is not None
    ref = policy.spec.identity.basic.secret_ref
    name = references.names(policy, (ref,))
    found: dict[str, SecretBytes] = {}
    for key in references.secret_keys(policy, ref):
        value = references.data(policy, ref, key)
        lines = value.splitlines() if key == _HTPASSWD else [key.encode() + b":" + value.strip()]
        for line in filter(None, map(bytes.strip, lines)):
            user, _, hashed = line.partition(b":")
            shown = user.decode("utf-8", "replace")
            if shown in found:
                raise UnresolvedRef("InvalidCredentials", f"{name} has the user {shown} twice")
            if problem := hash_problem(hashed):
                if key != _HTPASSWD and not hash_problem(hashed.split(b"\n")[0].strip().partition(b":")[2]):
                    problem = f"it has lines of a password file: give the file the key {_HTPASSWD}"
                raise UnresolvedRef("InvalidCredentials", f"{name}, user {shown}: {problem}")
            found[shown] = SecretBytes(hashed)
    if not found:
        raise UnresolvedRef("InvalidCredentials", f"{name} has no user")
    if len(found) > MAX_USERS:
        raise UnresolvedRef("InvalidCredentials", f"{name} has more than {MAX_USERS} users")
    return tuple(sorted(found.items())), f"{references.namespace_of(policy, ref)}/{ref.name}"


def expired_api_keys(policy: EgressPolicy, references: References) -> Iterator[tuple[str, str]]:
    """The API keys of a policy that have expired: the field that names their Secret, and a sentence."""
    if policy.spec.identity is None or policy.spec.identity.api_keys is None:
        return
    from egressproxy.model.encoding import rfc3339

    now = time()
    with suppress(UnresolvedRef):
        for key in _api_keys(policy, references)[0]:
            if now >= key.not_after:
                secret, _, entry = key.grant.entry.rpartition("#")
                at = next(
                    position
                    for position, ref in enumerate(policy.spec.identity.api_keys.secret_refs)
                    if secret == f"{references.namespace_of(policy, ref)}/{ref.name}"
                )
                ended = rfc3339(key.not_after)
                sentence = f"the key of entry {entry} of Secret {secret} expired at {ended}: remove it"
                yield f"spec.identity.apiKeys.secretRefs[{at}]", sentence


def _api_keys(policy: EgressPolicy, references: References) -> tuple[tuple[ApiKeyIR, ...], tuple[str, ...]]:
    """The API keys in all Secrets of the policy, and a sentence for each entry that is not used. Raises
    UnresolvedRef.
    """
    # Here, since few configurations have API keys.
    from egressproxy.identity.api_keys import MalformedRecord, read_record

    assert policy.spec.identity is not None
    assert policy.spec.identity.api_keys is not None
    found: dict[bytes, ApiKeyIR] = {}
    notes = []
    for position, ref in enumerate(policy.spec.identity.api_keys.secret_refs):
        where = f"apiKeys.secretRefs[{position}]"
        name = references.names(policy, (ref,))
        of = f"{references.namespace_of(policy, ref)}/{ref.name}"
        try:
            for entry in sorted(references.secret_keys(policy, ref)):
                told = f"spec.identity.{where}: entry {entry} of {name}"
                try:
                    key = read_record(entry, references.data(policy, ref, entry), of)
                except MalformedRecord as problem:
                    notes.append(f"{told} is malformed, and its key is refused: {problem}.")
                    continue
                known = found.setdefault(key.digest, key)
                if known is not key:
                    notes.append(f"{told} does nothing: {known.grant.entry} has the same hash; remove one of both.")
        except UnresolvedRef as unresolved:
            raise unresolved.copy(where) from None
        if len(found) > MAX_API_KEYS:
            message = f"the Secrets have more than {MAX_API_KEYS} API keys"
            raise UnresolvedRef("InvalidCredentials", message, field=where)
    return tuple(found.values()), tuple(notes)


def _pods(pods: Iterable[Pod]) -> list[AddressClientIR]:
    """The service accounts by Pod address. An ambiguous address, such as the host's, identifies no client."""
    found: dict[str, set[tuple[str, str]]] = {}
    for pod in pods:
        status = pod.status
        if status is None or pod.spec.host_network or status.phase in ("Succeeded", "Failed"):
            continue
        who = pod.namespace, pod.spec.service_account_name
        for address in {*(each.ip for each in status.pod_ips), status.pod_ip} - {None}:
            found.setdefault(str(address), set()).add(who)
    made = []
    for address, who_have in sorted(found.items()):
        try:
            network = ip_network(address)
        except ValueError:
            continue
        if len(who_have) == 1:
            made.append(AddressClientIR((network,), *who_have.pop()))
    return made
