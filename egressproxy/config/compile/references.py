"""References between objects: does the target exist, and may it be referred to from there.

A reference across namespaces needs a ReferenceGrant in the target's namespace (Gateway API, ReferenceGrant). What
cannot be resolved raises `Unresolved` with the reason word that Gateway API has for it; the caller puts it into status.
"""

from __future__ import annotations

import base64
import binascii
import difflib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import nsmallest
from typing import Final, Protocol, TypeVar

from egressproxy.config.compile.gateways.certificates import (
    CertificateProblem,
    crl_span,
    read_ca_bundle,
    read_crls,
    read_key_pair,
    spans,
)
from egressproxy.config.compile.interface import SecretReference
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.core import ConfigMap, Namespace, Secret
from egressproxy.config.resources.gateway import ReferenceGrant
from egressproxy.config.resources.meta import LabelSelector, Resource
from egressproxy.ir.gateway import CertificateIR
from egressproxy.model.certificate import CertificateUse, Validity
from egressproxy.model.secret import SecretBytes as SecretValue

__all__ = ["Gathering", "Names", "Namespaces", "Reference", "References", "Unresolved"]

T = TypeVar("T")


#: Names that are compared in one compilation to find what was meant: some 30 us each.
MAX_COMPARISONS = 50_000


#: Under which keys people keep a credential, for references that say none: the first that is there.
CREDENTIAL_KEYS: Final = ("token", "apiKey", "api-key")
#: What an editor leaves at the end of a Secret; the injector takes it off.
_SPACE: Final = b" \t\r\n"


class Unresolved(Exception):
    """A reference that leads nowhere, or must not be followed. `reason` is a condition's reason.

    `message` may be told to clients. `hint` says what else there is: names of objects and keys, for status alone.
    `field` is the field of the object that refers, where that is known; `others` are further faults of the object.
    """

    def __init__(
        self, reason: str, message: str, hint: str = "", field: str = "", others: tuple[Unresolved, ...] = ()
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.hint = hint
        self.field = field
        self.others = others

    @property
    def said(self) -> str:
        """For status: the message, and what may have been meant."""
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def anew(self, field: str = "", others: tuple[Unresolved, ...] = ()) -> Unresolved:
        """The same, to be raised once more, or of this field."""
        return Unresolved(self.reason, self.message, self.hint, field or self.field, others or self.others)


class Gathering:
    """Reads one reference after the other, and raises what is wrong with all of them at once."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[Unresolved] = []

    def take(self, field: str, read: Callable[[], T], default: T) -> T:
        """What `read` returns; `default` where it raises Unresolved, which is kept for `raise_if_any`."""
        try:
            return read()
        except Unresolved as unresolved:
            self._found.append(unresolved.anew(field))
            return default

    def raise_if_any(self) -> None:
        """Raise the first, which has the others."""
        if self._found:
            raise self._found[0].anew(others=tuple(self._found[1:]))


class Reference(Protocol):
    """The part that all references share."""

    @property
    def group(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...


class Namespaces:
    """The labels of namespaces; every namespace has `kubernetes.io/metadata.name`, even one that no object declares."""

    __slots__ = ("_labels",)

    def __init__(self, resources: ResourceSet) -> None:
        self._labels = {namespace.name: namespace.metadata.labels for namespace in resources.of(Namespace)}

    def is_allowed(self, origin: str, selector: LabelSelector | None, namespace: str, home: str) -> bool:
        """Whether objects of `namespace` may attach to one in `home` (`from`: All, Selector, Same, None)."""
        match origin:
            case "All":
                return True
            case "Same":
                return namespace == home
            case "Selector":
                labels = {**self._labels.get(namespace, {}), "kubernetes.io/metadata.name": namespace}
                return selector is not None and selector.matches(labels)
        return False


class Names:
    """What else an author may have meant by a name that leads nowhere."""

    __slots__ = ("_comparisons", "_found", "_namespaces", "_of_options", "_places")

    def __init__(self, resources: ResourceSet) -> None:
        self._comparisons = MAX_COMPARISONS
        #: (group, kind) -> (namespace, name)
        self._found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        for group, kind, namespace, name in resources.by_key:
            self._found[group, kind].append((namespace, name))
        #: Secrets that an option of the command line has put into a namespace: they stand at no line of a file.
        self._of_options = {
            (secret.namespace, secret.name)
            for secret in resources.of(Secret)
            if secret.origin.file and not secret.origin.line
        }
        self._places = {key: frozenset(places) for key, places in self._found.items()}
        self._namespaces = {namespace for _, _, namespace, _ in resources.by_key if namespace}
        self._namespaces |= {namespace.name for namespace in resources.of(Namespace)}

    def has_namespace(self, name: str) -> bool:
        """Whether any object is in this namespace, or declares it."""
        return name in self._namespaces

    def remedy(
        self,
        group: str,
        kind: str,
        namespace: str,
        name: str,
        elsewhere: str,
        kinds: Collection[tuple[str, str]] = (),
    ) -> str:
        """The same name in another group, or of one of these other `kinds` (group, kind); in another namespace
        (`elsewhere` says what to do then); or the nearest name. "" where nothing is near.
        """
        found = self._found.get((group, kind), [])
        place = (namespace, name)
        others = [each for each in sorted(kinds) if each != (group, kind)]
        others += [(other, known) for other, known in self._found if known == kind and other != group]
        there = [each for each in dict.fromkeys(others) if place in self._places.get(each, ())]
        if there:
            return ", or ".join(_as_written(group, kind, *each, namespace, name) for each in there)
        homes = sorted(home for home, other in found if other == name)
        if homes:
            if kind == "Secret" and any((home, name) in self._of_options for home in homes):
                elsewhere = (
                    f"give it as {namespace}/{name}: --secret {namespace}/{name}=…, "
                    f"or --secrets with a folder for {namespace}"
                )
            shown = ", ".join(f"{home}/{name}" for home in homes[:3]) + (" and more" if len(homes) > 3 else "")
            return f"{shown} {'are' if len(homes) > 1 else 'is'} in another namespace: {elsewhere}"
        here = [other for home, other in found if home == namespace]
        near = self._near(name, here)
        if near:
            return f"did you mean {near}?"
        groups = [other for other, known in self._found if known == kind and other != group]
        if groups and not found:
            return f"write group: {groups[0]}" if groups[0] else 'write group: ""'
        return f"in this namespace there is {', '.join(nsmallest(5, here))}" if here else ""

    def _near(self, name: str, names: Sequence[str]) -> str:
        """The nearest of these names; "" where none is, or after too many comparisons."""
        if len(names) > self._comparisons:
            return ""
        self._comparisons -= len(names)
        return next(iter(difflib.get_close_matches(name, names, 1, 0.6)), "")


def _as_written(group: str, kind: str, other_group: str, other_kind: str, namespace: str, name: str) -> str:
    """That an object of this name is there, and what to write for it."""
    written = [f"kind: {other_kind}"] if other_kind != kind else []
    written += [f"group: {other_group or chr(34) * 2}"] if other_group != group else []
    of_group = f" of group {other_group}" if other_group else ""
    return f"{other_kind} {namespace}/{name}{of_group} is there: write {', '.join(written)}"


class References:
    """Looks objects up on behalf of other objects."""

    __slots__ = ("_grants", "_resources", "meant", "validities")

    def __init__(self, resources: ResourceSet) -> None:
        self._resources = resources
        #: For hints on what is not there.
        self.meant = Names(resources)
        #: Of every certificate that was read, by use, kind, namespace and name, with the object that asked first.
        self.validities: dict[tuple[CertificateUse, str, str, str], tuple[Validity, Resource]] = {}
        #: target namespace -> (from group, kind, namespace, to group, kind, name or "")
        self._grants: dict[str, set[tuple[str, str, str, str, str, str]]] = defaultdict(set)
        for grant in resources.of(ReferenceGrant):
            for source in grant.spec.from_:
                for target in grant.spec.to:
                    entry = (source.group, source.kind, source.namespace, target.group, target.kind, target.name or "")
                    self._grants[grant.namespace].add(entry)

    def namespace_of(self, source: Resource, ref: Reference) -> str:
        """The namespace that a reference means: its own, or that of the object which holds it."""
        return getattr(ref, "namespace", None) or source.namespace

    def names(self, source: Resource, refs: Iterable[Reference]) -> str:
        """What these references mean, for people: `Kind namespace/name`, joined by commas."""
        return ", ".join(f"{ref.kind} {self.namespace_of(source, ref)}/{ref.name}" for ref in refs)

    def check_permitted(self, source: Resource, ref: Reference, kind: str = "") -> None:
        """Raise Unresolved (RefNotPermitted) where the reference leaves the namespace without a ReferenceGrant.

        `kind` is the kind that the object has, where the reference may call it by another ("": it does not): a grant
        for one kind of backends must not open those of another.
        """
        namespace = self.namespace_of(source, ref)
        if namespace == source.namespace:
            return
        grants = self._grants.get(namespace, set())
        place = (source.group, source.KIND, source.namespace, ref.group, kind or ref.kind)
        if (*place, ref.name) not in grants and (*place, "") not in grants:
            hint = ""
            if not self.meant.has_namespace(namespace):
                is_here = self._resources.get(ref.group, ref.kind, source.namespace, ref.name) is not None
                remedy = f"; {source.namespace}/{ref.name} is there: leave namespace out" if is_here else ""
                hint = f"nothing is in namespace {namespace}{remedy}"
            raise Unresolved(
                "RefNotPermitted",
                f"{source} refers to {ref.kind} {namespace}/{ref.name}: add a ReferenceGrant in namespace {namespace} "
                f"from {f'{source.KIND} ({source.group})' if source.group else source.KIND} "
                f"of namespace {source.namespace}"
                f"{f' to {kind}, which it is' if kind not in ('', ref.kind) else ''}",
                hint,
            )

    def find(self, source: Resource, ref: Reference) -> Resource | None:
        """The object meant, None if there is none. Raises Unresolved (RefNotPermitted)."""
        self.check_permitted(source, ref)
        return self._resources.get(ref.group, ref.kind, self.namespace_of(source, ref), ref.name)

    def data(self, source: Resource, ref: Reference, key: str) -> bytes:
        """One entry of a ConfigMap or Secret. Raises Unresolved: not permitted, not there, or another kind."""
        name = f"{ref.kind} {self.namespace_of(source, ref)}/{ref.name}"
        if ref.group or ref.kind not in ("ConfigMap", "Secret"):
            raise Unresolved("InvalidKind", f"{name} is neither a ConfigMap nor a Secret")
        found = self.find(source, ref)
        if isinstance(found, Secret):
            value = found.value(key)
            content = value.reveal() if value is not None else None
        elif isinstance(found, ConfigMap):
            content = _config_data(found, key)
        else:
            raise self.absent("NotFound", ref.group, ref.kind, self.namespace_of(source, ref), ref.name)
        if content is None:
            raise Unresolved("NotFound", f"{name} has no entry {key}", _keys_of(found))
        return content

    def absent(
        self, reason: str, group: str, kind: str, namespace: str, name: str, kinds: Collection[tuple[str, str]] = ()
    ) -> Unresolved:
        """That an object is not there, and what may have been meant: `kinds` could be in its place."""
        elsewhere = f"add namespace to the reference, and a ReferenceGrant for {kind} there"
        hint = self.meant.remedy(group, kind, namespace, name, elsewhere, kinds)
        return Unresolved(reason, f"{kind} {namespace}/{name} does not exist", hint)

    def secret_value(self, source: Resource, ref: SecretReference) -> SecretValue:
        """One entry of a Secret. Raises Unresolved: RefNotPermitted, SecretNotFound, SecretKeyAmbiguous.

        Where no key is said it is the only one, or the first of `CREDENTIAL_KEYS` that is there.
        """
        self.check_permitted(source, ref)
        namespace = self.namespace_of(source, ref)
        name = f"Secret {namespace}/{ref.name}"
        found = self.secret_object(namespace, ref.name)
        key = ref.key
        if found is not None and not key and found.keys:
            usual = found.keys if len(found.keys) == 1 else [each for each in CREDENTIAL_KEYS if each in found.keys]
            if not usual:
                listed = ", ".join(found.keys)
                raise Unresolved("SecretKeyAmbiguous", f"{name} has the keys {listed}: say which one in secretRef.key")
            key = usual[0]
        value = found.value(key) if found is not None else None
        if value is None or not value.reveal().strip(_SPACE):
            hint = self.absent("", "", "Secret", namespace, ref.name).hint if found is None else _keys_of(found)
            hint = hint if value is None else "the value is empty"
            raise Unresolved("SecretNotFound", f"{name} with key {key}" if key else f"{name} with a value", hint)
        return value

    def secret_object(self, namespace: str, name: str) -> Secret | None:
        """The Secret of this name, None if there is none."""
        found = self._resources.get("", "Secret", namespace, name)
        return found if isinstance(found, Secret) else None

    def key_pair(
        self, source: Resource, ref: Reference, use: CertificateUse, chain_key: str = "tls.crt"
    ) -> CertificateIR:
        """The certificate and key of a Secret (`tls.crt` or `chain_key`, and `tls.key`). Raises Unresolved."""
        name = f"{ref.kind} {self.namespace_of(source, ref)}/{ref.name}"
        if ref.group or ref.kind != "Secret":
            raise Unresolved("InvalidKind", f"{name} is not a Secret")
        chain, key = self.data(source, ref, chain_key), self.data(source, ref, "tls.key")
        try:
            pair = read_key_pair(f"{self.namespace_of(source, ref)}/{ref.name}", chain, key)
            self._note(source, ref, use, chain, chain_key)
        except CertificateProblem as problem:
            raise Unresolved("InvalidCertificate", f"{name}: {problem}") from None
        return pair

    def validity(self, source: Resource, ref: Reference, use: CertificateUse) -> Validity:
        """Of a certificate that was read for this use."""
        return self.validities[use, ref.kind, self.namespace_of(source, ref), ref.name][0]

    def _note(self, source: Resource, ref: Reference, use: CertificateUse, pem: bytes, field: str) -> None:
        """Note how long it is valid. Raises CertificateProblem."""
        key = (use, ref.kind, self.namespace_of(source, ref), ref.name)
        if key in self.validities:
            return
        found = spans(pem, field)
        if use is not CertificateUse.CA:
            del found[1:]
        begin, first, last = min(b for b, _ in found), min(e for _, e in found), max(e for _, e in found)
        self.validities[key] = Validity(*key, begin, first, last), source

    def ca_bundle(self, source: Resource, ref: Reference, key: str = "ca.crt") -> str:
        """The CA certificates of a ConfigMap or Secret (under `key`), PEM. Raises Unresolved."""
        pem = self.data(source, ref, key)
        try:
            bundle = read_ca_bundle(pem)
            self._note(source, ref, CertificateUse.CA, pem, key)
        except CertificateProblem as problem:
            raise Unresolved("InvalidCertificate", f"{ref.kind} {ref.name}: {problem}") from None
        return bundle

    def ca_bundles(self, source: Resource, refs: Iterable[Reference]) -> tuple[str, list[Unresolved]]:
        """What these references to CA certificates give together, PEM; and why the others give nothing."""
        bundles, problems = [], []
        for ref in refs:
            try:
                bundles.append(self.ca_bundle(source, ref))
            except Unresolved as unresolved:
                problems.append(unresolved)
        return "".join(bundles), problems

    def crl(self, source: Resource, ref: Reference) -> str:
        """The revocation lists of a ConfigMap or Secret (`crl.pem`), PEM. Raises Unresolved."""
        pem = self.data(source, ref, "crl.pem")
        try:
            text = read_crls(pem)
            begin, end = crl_span(text)
        except CertificateProblem as problem:
            raise Unresolved("InvalidCertificate", f"{ref.kind} {ref.name}: {problem}") from None
        key = (CertificateUse.CRL, ref.kind, self.namespace_of(source, ref), ref.name)
        if end != float("inf"):
            self.validities.setdefault(key, (Validity(*key, begin, end, end), source))
        return text


def _keys_of(found: Secret | ConfigMap) -> str:
    """The names of its entries, and nothing of what they hold."""
    keys = found.keys if isinstance(found, Secret) else tuple(sorted({*found.data, *found.binary_data}))
    shown = ", ".join(keys[:8]) + (" and more" if len(keys) > 8 else "")
    return f"it has {shown}" if keys else "it is empty"


def _config_data(config_map: ConfigMap, key: str) -> bytes | None:
    """`data` as text, `binaryData` as base64; None where neither has the key."""
    if key in config_map.data:
        return config_map.data[key].encode()
    try:
        return base64.b64decode(config_map.binary_data[key], validate=True)
    except (KeyError, binascii.Error):
        return None
