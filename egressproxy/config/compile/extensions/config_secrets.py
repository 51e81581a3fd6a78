"""The Secrets that the config of a filter refers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from egressproxy.config.compile.extensions.extension_faults import ExtensionFaults
from egressproxy.config.compile.interface import FilterCatalog, FilterTypeInfo
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.resources.meta import Resource
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.fields import VALUE
from egressproxy.model.published_object import Key
from egressproxy.model.secret import SecretBytes

#: The types whose Secret becomes part of a field line, where a line break would start another one.
INJECTOR: Final = "egressproxy.io/CredentialInjector:"

#: What an editor leaves at the end of a Secret; the injector takes it off.
_SPACE: Final = b" \t\r\n"


def secrets_of(
    references: References,
    owner: Resource,
    found: FilterTypeInfo,
    config: Any,
    path: str,
    faults: Mapping[Key, ExtensionFaults],
) -> tuple[tuple[str, SecretBytes], ...]:
    """The labels and values of the Secrets that a config of this type (whose field in `owner` is `path`) refers to,
    those that are there. The others are noted in `faults`, which has an entry for each object that is asked for.
    """
    secrets = []
    for ref in found.secret_refs(config):
        try:
            value = references.secret_value(owner, ref)
            is_line = found.name.startswith(INJECTOR) and not ref.is_document
            if is_line and not VALUE.fullmatch(value.reveal().strip(_SPACE)):
                # A line break inside would add a field to every request (RFC 9110 section 5.5): as good as missing.
                where = f"{references.namespace_of(owner, ref)}/{ref.name} key {ref.key or '(the only one)'}"
                why = "it holds a line break or another control character; store the credential alone, on one line"
                raise UnresolvedRef("SecretNotFound", f"a usable value of Secret {where} ({why})")
        except UnresolvedRef as unresolved:
            faults[owner.key].note_secret(unresolved, f"{path}.{_field_of(config, ref) or 'secretRef'}")
            continue
        secrets.append((ref.label, value))
    return tuple(dict.fromkeys(secrets))


def misfit_of(
    catalog: FilterCatalog, spec: ExtensionIR, found: FilterTypeInfo, config: Any, path: str
) -> tuple[str, str] | None:
    """What this config (whose field is `path`) names, is there, and does not fit the filter: why, and its field. None
    where all of it fits, where some is missing (`secrets_of` has noted that), and for a config of None.
    """
    if config is None:
        return None
    labels = {ref.label for ref in found.secret_refs(config)}
    if labels != dict(spec.secrets).keys() or not (labels or found.machine_field(config)):
        return None
    misfit = catalog.misfit(spec, config)
    if misfit is None:
        return None
    why, ref = misfit
    field = _field_of(config, ref) if ref is not None else found.machine_field(config)
    return why, f"{path}.{field}" if field else path


def _field_of(config: Any, ref: object) -> str:
    """The field of a config that holds this reference, as it is written: `basic.usernameRef`, `secrets[0]`; "" if none
    does.
    """
    if isinstance(config, tuple):
        return next((f"[{index}]" for index, each in enumerate(config) if each is ref), "")
    if not is_dataclass(config):
        return ""
    for each in fields(config):
        value = getattr(config, each.name)
        inner = "" if value is ref else _field_of(value, ref)
        if value is ref or inner:
            first, *rest = each.name.split("_")
            name = first + "".join(word.capitalize() for word in rest)
            return f"{name}{inner if inner[:1] == '[' else f'.{inner}'}" if inner else name
    return ""
