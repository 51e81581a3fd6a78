"""References between objects: lookup of targets, and permission.

A reference across namespaces needs a ReferenceGrant in the target's namespace (Gateway API, ReferenceGrant). An
unresolved reference raises `UnresolvedRef` with Gateway API's reason, which the caller puts into status.
"""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar

from egressproxy.config.compile.certificates import (
    CertificateProblem,
    Span,
    ca_problem,
    read_ca_bundle,
    read_crls,
    read_key_pair,
)
from egressproxy.config.compile.interface import Materials, Reference, SecretReference
from egressproxy.config.compile.suggestions import NameSuggestions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.core import ClusterTrustBundle, ConfigMap, Namespace, Pod, Secret
from egressproxy.config.resources.gateway import ReferenceGrant, RouteNamespaces
from egressproxy.config.resources.meta import Resource
from egressproxy.ir.gateway import CertificateIR
from egressproxy.model.certificate import CertificateUse, Validity
from egressproxy.model.published_object import Key
from egressproxy.model.secret import SecretBytes as SecretValue

R = TypeVar("R")
T = TypeVar("T")

#: The usual keys of a credential, for references without a key: the first existing one.
CREDENTIAL_KEYS: Final = ("token", "apiKey", "api-key")
#: The label that each Namespace has.
_NAME: Final = "kubernetes.io/metadata.name"
#: What an editor leaves at the end of a Secret; the injector takes it off.
_SPACE: Final = b" \t\r\n"
_TRUST_BUNDLE: Final = (ClusterTrustBundle.GROUP, ClusterTrustBundle.KIND)


class UnresolvedRef(Exception):
    """A reference without a target, or without permission. `reason` is a condition's reason.

    `message` may be shown to clients. `hint` lists existing names of objects and keys, for status alone. `field` is the
    field of the referring object, if known; `others` are further faults of the object.
    """

    def __init__(
        self, reason: str, message: str, hint: str = "", field: str = "", others: tuple[UnresolvedRef, ...] = ()
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.hint = hint
        self.field = field
        self.others = others

    @property
    def with_hint(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def copy(self, field: str = "", others: tuple[UnresolvedRef, ...] = ()) -> UnresolvedRef:
        """The same error to raise again, with this field or these further faults."""
        return UnresolvedRef(self.reason, self.message, self.hint, field or self.field, others or self.others)


def resolve_each(read: Callable[[R], T], refs: Iterable[R]) -> tuple[list[T], list[UnresolvedRef]]:
    """The results of `read` for these references, and the errors of the others."""
    found, problems = [], []
    for ref in refs:
        try:
            found.append(read(ref))
        except UnresolvedRef as unresolved:
            problems.append(unresolved)
    return found, problems


class References:
    """Looks objects up on behalf of other objects."""

    __slots__ = ("_before", "_grants", "_resources", "kept", "materials", "suggestions", "validities")

    def __init__(self, resources: ResourceSet, before: Materials = MappingProxyType({})) -> None:
        """`before`: the `materials` of the configuration in service."""
        self._resources = resources
        self._before = before
        #: The last usable contents of certificates, keys and lists in files.
        self.materials: dict[tuple[str, ...], tuple[bytes, ...]] = {}
        #: Referring object -> the reasons why earlier contents of files stay in force, as sentences.
        self.kept: dict[Key, dict[str, None]] = {}
        #: Hints for missing names.
        self.suggestions = NameSuggestions(resources)
        #: The validity of every certificate read, by use, kind, namespace and name, with the first referring object.
        self.validities: dict[tuple[CertificateUse, str, str, str], tuple[Validity, Resource]] = {}
        #: target namespace -> (from group, kind, namespace, to group, kind, name or "")
        self._grants: dict[str, set[tuple[str, str, str, str, str, str]]] = defaultdict(set)
        for grant in resources.of(ReferenceGrant):
            for source in grant.spec.from_:
                for target in grant.spec.to:
                    entry = (source.group, source.kind, source.namespace, target.group, target.kind, target.name or "")
                    self._grants[grant.namespace].add(entry)

    def is_allowed(self, allowed: RouteNamespaces, namespace: str, home: str) -> bool:
        """Whether objects of `namespace` may attach to one in `home`."""
        match allowed.from_:
            case "All":
                return True
            case "Same":
                return namespace == home
            case "Selector":
                declared = self._resources.find(Namespace, "", namespace)
                labels = declared.metadata.labels if declared is not None else {}
                selector = allowed.selector
                if selector is None or (declared is None and self._resources.has_cluster and selector.keys - {_NAME}):
                    return False  # a cluster's Namespace that was not read
                return selector.matches({**labels, _NAME: namespace})
        return False

    def namespace_of(self, source: Resource, ref: Reference) -> str:
        """The namespace of a reference, by default the namespace of the referring object."""
        return getattr(ref, "namespace", None) or source.namespace

    def names(self, source: Resource, refs: Iterable[Reference]) -> str:
        """The objects of these references for people: `Kind namespace/name`, joined by commas."""
        return ", ".join(
            f"{ref.kind} {ref.name}"
            if _is_trust_bundle(ref)
            else f"{ref.kind} {self.namespace_of(source, ref)}/{ref.name}"
            for ref in refs
        )

    def check_permitted(self, source: Resource, ref: Reference, kind: str = "") -> None:
        """Raise UnresolvedRef (RefNotPermitted) for a reference to another namespace without a ReferenceGrant.

        A cluster-scoped object needs no grant: its author may write in all namespaces. `kind` is the actual kind of the
        object if the reference may name an alias ("": it does not): a grant for one kind must not open another.
        """
        namespace = self.namespace_of(source, ref)
        if namespace == source.namespace or not source.NAMESPACED:
            return
        grants = self._grants.get(namespace, set())
        grant_key = (source.GROUP, source.KIND, source.namespace, ref.group, kind or ref.kind)
        if (*grant_key, ref.name) not in grants and (*grant_key, "") not in grants:
            hint = ""
            if not self.suggestions.has_namespace(namespace):
                is_here = (ref.group, ref.kind, source.namespace, ref.name) in self._resources.by_key
                remedy = f"; {source.namespace}/{ref.name} is there: leave namespace out" if is_here else ""
                hint = f"nothing is in namespace {namespace}{remedy}"
            raise UnresolvedRef(
                "RefNotPermitted",
                f"{source} refers to {ref.kind} {namespace}/{ref.name}: add a ReferenceGrant in namespace {namespace} "
                f"from {f'{source.KIND} ({source.GROUP})' if source.GROUP else source.KIND} "
                f"of namespace {source.namespace}"
                f"{f' to {kind}, its actual kind' if kind not in ('', ref.kind) else ''}",
                hint,
            )

    def find(self, source: Resource, ref: Reference) -> Resource | None:
        """The object meant, None if there is none. Raises UnresolvedRef (RefNotPermitted)."""
        self.check_permitted(source, ref)
        return self._resources.get(ref.group, ref.kind, self.namespace_of(source, ref), ref.name)

    def data(self, source: Resource, ref: Reference, key: str) -> bytes:
        """One entry of a ConfigMap or Secret. Raises UnresolvedRef: not permitted, not there, or another kind."""
        name = self.names(source, (ref,))
        if ref.group or ref.kind not in ("ConfigMap", "Secret"):
            hint = f"write group: {_TRUST_BUNDLE[0]}" if ref.kind == _TRUST_BUNDLE[1] else ""
            raise UnresolvedRef("InvalidKind", f"{name} is neither a ConfigMap nor a Secret", hint)
        found = self.find(source, ref)
        if isinstance(found, Secret):
            value = found.value(key)
            content = value.reveal() if value is not None else None
        elif isinstance(found, ConfigMap):
            content = _config_data(found, key)
        else:
            target = (self.namespace_of(source, ref), ref.name)
            raise self.not_found("NotFound", ref.group, ref.kind, *target, needs_grant=source.NAMESPACED)
        if content is None:
            raise UnresolvedRef("NotFound", f"{name} has no entry {key}", _keys_of(found))
        return content

    def secret_keys(self, source: Resource, ref: Reference) -> tuple[str, ...]:
        """The names of all entries of a Secret. Raises UnresolvedRef."""
        name = self.names(source, (ref,))
        if ref.group or ref.kind != "Secret":
            raise UnresolvedRef("InvalidKind", f"{name} is not a Secret")
        found = self.find(source, ref)
        if not isinstance(found, Secret):
            target = (self.namespace_of(source, ref), ref.name)
            raise self.not_found("NotFound", ref.group, ref.kind, *target, needs_grant=source.NAMESPACED)
        return tuple(found.keys)

    def pods(self) -> Sequence[Pod]:
        """All Pods, for identity by address. Raises UnresolvedRef where those of the cluster are not read."""
        self._resources.wanted.add(("", Pod.KIND, "", ""))
        if not self._resources.is_read(Pod):
            raise UnresolvedRef(
                "NotFound", "the Pods of the cluster are not read (`rbac.pods` of the chart permits it)"
            )
        return self._resources.of(Pod)

    def not_found(
        self,
        reason: str,
        group: str,
        kind: str,
        namespace: str,
        name: str,
        kinds: Collection[tuple[str, str]] = (),
        *,
        needs_grant: bool = True,
    ) -> UnresolvedRef:
        """A missing object, with a hint. `kinds` may be meant; `needs_grant`: not where who refers has no namespace."""
        grant = f", and a ReferenceGrant for {kind} there" if needs_grant else ""
        elsewhere = f"add namespace to the reference{grant}"
        hint = self.suggestions.remedy(group, kind, namespace, name, elsewhere, kinds)
        return UnresolvedRef(reason, f"{kind} {namespace}/{name} does not exist", hint)

    def secret_value(self, source: Resource, ref: SecretReference) -> SecretValue:
        """One entry of a Secret. Raises UnresolvedRef: RefNotPermitted, SecretNotFound, SecretKeyAmbiguous.

        The default key is the only one, or the first existing one of `CREDENTIAL_KEYS`.
        """
        self.check_permitted(source, ref)
        namespace = self.namespace_of(source, ref)
        name = f"Secret {namespace}/{ref.name}"
        found = self._resources.find(Secret, namespace, ref.name)
        key = ref.key
        if found is not None and not key and found.keys:
            usual = found.keys if len(found.keys) == 1 else [each for each in CREDENTIAL_KEYS if each in found.keys]
            if not usual:
                listed = ", ".join(found.keys)
                raise UnresolvedRef("SecretKeyAmbiguous", f"{name} has the keys {listed}: name one in secretRef.key")
            key = usual[0]
        value = found.value(key) if found is not None else None
        if value is None or not value.reveal().strip(_SPACE):
            if value is not None:
                hint = "the value is empty"
            elif found is not None:
                hint = _keys_of(found)
            else:
                hint = self.not_found("", "", "Secret", namespace, ref.name, needs_grant=source.NAMESPACED).hint
            raise UnresolvedRef("SecretNotFound", f"{name} with key {key}" if key else f"{name} with a value", hint)
        return value

    def key_pair(
        self, source: Resource, ref: Reference, use: CertificateUse, chain_key: str = "tls.crt"
    ) -> CertificateIR:
        """The certificate and key of a Secret (`tls.crt` or `chain_key`, and `tls.key`). Raises UnresolvedRef."""
        name = self.names(source, (ref,))
        if ref.group or ref.kind != "Secret":
            raise UnresolvedRef("InvalidKind", f"{name} is not a Secret")
        read = partial(read_key_pair, f"{self.namespace_of(source, ref)}/{ref.name}")
        pair, span = self._read(source, ref, name, (chain_key, "tls.key"), read)
        self._note(source, ref, use, [span])
        return pair

    def signing_ca(self, source: Resource, ref: Reference) -> CertificateIR:
        """The CA of a Secret (`tls.crt` and `tls.key`) that signs certificates. Raises UnresolvedRef."""
        pair = self.key_pair(source, ref, CertificateUse.CA)
        problem = ca_problem(pair)
        if problem:
            raise UnresolvedRef("InvalidCertificate", f"{self.names(source, (ref,))}: {problem}")
        return pair

    def validity(self, source: Resource, ref: Reference, use: CertificateUse) -> Validity:
        """The validity of a certificate that was read for this use."""
        return self.validities[use, ref.kind, self.namespace_of(source, ref), ref.name][0]

    def _note(self, source: Resource, ref: Reference, use: CertificateUse, spans: Sequence[Span]) -> None:
        namespace = "" if _is_trust_bundle(ref) else self.namespace_of(source, ref)
        key = (use, ref.kind, namespace, ref.name)
        begins, ends = zip(*spans, strict=True)
        self.validities.setdefault(key, (Validity(*key, min(begins), min(ends), max(ends)), source))

    def ca_bundle(self, source: Resource, ref: Reference, key: str = "ca.crt") -> str:
        """CA certificates, PEM, under `key` or of a ClusterTrustBundle (no grant needed). Raises UnresolvedRef."""
        read = partial(read_ca_bundle, field="spec.trustBundle" if _is_trust_bundle(ref) else key)
        bundle, spans = self._read(source, ref, f"{ref.kind} {ref.name}", (key,), read)
        self._note(source, ref, CertificateUse.CA, spans)
        return bundle

    def server_certificates(self, source: Resource, ref: Reference) -> str:
        """Certificates of servers, PEM, of a ConfigMap or Secret: under `tls.crt`, or else `ca.crt`. Raises
        UnresolvedRef.
        """
        if _is_trust_bundle(ref):
            raise UnresolvedRef("InvalidKind", f"{ref.kind} {ref.name} is neither a ConfigMap nor a Secret")
        found = self.find(source, ref)
        keys = found.keys if isinstance(found, Secret) else ()
        if isinstance(found, ConfigMap):
            keys = (*found.data, *found.binary_data)
        return self.ca_bundle(source, ref, "tls.crt" if "tls.crt" in keys else "ca.crt")

    def _read(self, source: Resource, ref: Reference, name: str, keys: tuple[str, ...], read: Callable[..., T]) -> T:
        """The result of `read` for these entries. For files in an unusable state, such as half of a key pair during a
        rotation, the last usable contents are read.

        Raises UnresolvedRef.
        """
        at = (ref.kind, "" if _is_trust_bundle(ref) else self.namespace_of(source, ref), ref.name, *keys)
        found: Resource | None = None
        try:
            if _is_trust_bundle(ref):
                found = self._resources.find(ClusterTrustBundle, "", ref.name)
                pieces: tuple[bytes, ...] = (self._trust_bundle(ref),)
            else:
                found = self.find(source, ref)
                pieces = tuple(self.data(source, ref, key) for key in keys)
            made = read(*pieces)
        except CertificateProblem as problem:
            why = UnresolvedRef("InvalidCertificate", f"{name}: {problem}")
        except UnresolvedRef as unresolved:
            if not isinstance(found, Secret) or not any(found.value(key) for key in keys):
                raise
            why = unresolved
        else:
            if found is not None and found.origin.is_of_option:
                self.materials[at] = pieces
            return made
        pieces = self._before.get(at, ())
        if not pieces or found is None or not found.origin.is_of_option:
            raise why
        self.materials[at] = pieces
        sentence = f"{why.message}: what it held before stays in force until it can be used"
        self.kept.setdefault(source.key, {})[sentence] = None
        return read(*pieces)

    def _trust_bundle(self, ref: Reference) -> bytes:
        found = self._resources.find(ClusterTrustBundle, "", ref.name)
        if found is None:
            hint = self.suggestions.remedy(*_TRUST_BUNDLE, "", ref.name, "")
            raise UnresolvedRef("NotFound", f"ClusterTrustBundle {ref.name} does not exist", hint)
        return found.spec.trust_bundle.encode()

    def ca_bundles(self, source: Resource, refs: Iterable[Reference]) -> tuple[str, list[UnresolvedRef]]:
        """The CA certificates of these references, PEM; and the errors of the others."""
        bundles, problems = resolve_each(partial(self.ca_bundle, source), refs)
        return "".join(bundles), problems

    def ca_of(self, owner: Key, refs: Sequence[Reference]) -> tuple[str, str]:
        """The CA certificates of all these references, PEM, and their names for people. Raises UnresolvedRef."""
        source = self._resources.get(*owner)
        assert source is not None
        return "".join(self.ca_bundle(source, ref) for ref in refs), self.names(source, refs)

    def crl(self, source: Resource, ref: Reference) -> str:
        """The revocation lists of a ConfigMap or Secret (`crl.pem`), PEM. Raises UnresolvedRef."""
        text, span = self._read(source, ref, f"{ref.kind} {ref.name}", ("crl.pem",), read_crls)
        if span[1] != float("inf"):
            self._note(source, ref, CertificateUse.CRL, [span])
        return text

    def crls(self, refs: Iterable[tuple[Resource, Reference]], field: str, problems: dict[str, None]) -> str:
        """The revocation lists of these references in `field`, PEM, each once. `problems` gets read errors."""
        lists: dict[str, None] = {}
        for source, ref in refs:
            try:
                lists[self.crl(source, ref)] = None
            except UnresolvedRef as unresolved:
                problems[f"{field} of {source}: {unresolved.message}"] = None
        return "".join(lists)


def _is_trust_bundle(ref: Reference) -> bool:
    return (ref.group, ref.kind) == _TRUST_BUNDLE


def _keys_of(found: Secret | ConfigMap) -> str:
    """The names of the entries, without values."""
    keys = found.keys if isinstance(found, Secret) else tuple(sorted({*found.data, *found.binary_data}))
    shown = ", ".join(keys[:8]) + (" and more" if len(keys) > 8 else "")
    return f"it has {shown}" if keys else "it is empty"


def _config_data(config_map: ConfigMap, key: str) -> bytes | None:
    """The entry in `data` (text) or `binaryData` (base64), or None."""
    if key in config_map.data:
        return config_map.data[key].encode()
    try:
        return base64.b64decode(config_map.binary_data[key], validate=True)
    except (KeyError, binascii.Error):
        return None
