"""`check --secrets-elsewhere`: a configuration whose Secrets are added where it runs, such as in a pipeline.

It is compiled once more with a stand-in for each Secret that a reference looks for and that is not there. What is found
only because of a stand-in is left out; everything else is a finding as ever, also what a missing Secret had hidden.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.core import Secret
from egressproxy.config.resources.values import SUBDOMAIN
from egressproxy.gateway.leaf_certificates.minting import new_ca

if TYPE_CHECKING:
    from egressproxy.config.reading.problems import Problem

_NAMED: Final = re.compile(r"Secret ([^\s/,;:)]+/[^\s/,;:)]+)(?: with key ([^\s,;:)]+))?")
#: Of what does not fit into a filter.
_UNFIT: Final = "InvalidSecret"
#: Of a certificate for other names than its listener's.
_OF_OTHER_NAMES: Final = "HostnameNotCovered"


def missing_secrets(resources: ResourceSet) -> list[str]:
    """The Secrets (`namespace/name`) that references have looked for in vain, and that can be elsewhere."""
    return sorted(
        f"{namespace}/{name}"
        for group, kind, namespace, name in resources.wanted
        if not group
        and kind == Secret.KIND
        and (group, kind, namespace, name) not in resources.by_key
        and SUBDOMAIN.fullmatch(name)
    )


def with_stand_ins(resources: ResourceSet, missing: Iterable[str], findings: Iterable[Problem]) -> ResourceSet:
    """The objects with a Secret for each that is missing. `findings` have the keys that references name."""
    keys: dict[str, set[str]] = defaultdict(set)
    for each in findings:
        for name, key in _NAMED.findall(each.message):
            keys[name].add(key)
    chain, private = new_ca("stand-in", time.time(), 365)
    pem = {"tls.crt": chain, "tls.key": private.reveal().decode(), "ca.crt": chain}
    made = []
    for name in missing:
        # Usable as a key, and each another: what a filter finds wrong with it could hide what is wrong with the next.
        texts = dict.fromkeys(
            ("token", "username", "password", *filter(None, keys[name])), sha256(name.encode()).hexdigest()
        )
        metadata = dict(zip(("namespace", "name"), name.split("/"), strict=True))
        value = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {**texts, **pem}}
        made.append(Secret.model_validate(value))
    return ResourceSet(
        (*resources.objects, *made), resources.warnings, resources.problems, resources.broken, resources.read,
        resources.left_out,
    )  # fmt: skip


def without_stand_ins(before: Sequence[Problem], after: Iterable[Problem], missing: Iterable[str]) -> list[Problem]:
    """The findings of `after` (with stand-ins) that are not of a stand-in. `before`: those without stand-ins."""
    names = {*missing}

    def is_named(found: Problem) -> bool:
        return any(name in names for name, _ in _NAMED.findall(found.message))

    places = [(each.object, each.field_path) for each in before if is_named(each)]

    def is_of_stand_in(found: Problem) -> bool:
        if found in before:
            return False
        if is_named(found):
            return True
        if found.code == _OF_OTHER_NAMES and any(f" {name} " in f"{found.message} " for name in names):
            return True
        return found.code == _UNFIT and any(
            owner == found.object and field.startswith(found.field_path) for owner, field in places
        )

    return [each for each in after if not is_of_stand_in(each)]
