"""What an object becomes by a write: from the objects that there are and a request to a manifest, or a refusal.

Source: Kubernetes API conventions (metadata, optimistic concurrency, Status), API concepts (dry run, generated names).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any, Final, NamedTuple
from uuid import uuid4

import yaml

from egressproxy.config.reading.load import ResourceSet, load_text
from egressproxy.config.reading.problems import ConfigError
from egressproxy.config.resources.kinds import kind_class
from egressproxy.config.resources.meta import Resource
from egressproxy.kubeapi.write.bodies import faults, read_body, read_document, too_large
from egressproxy.kubeapi.write.managed_fields import apply, updated
from egressproxy.kubeapi.write.patches import (
    Shape,
    json_patch,
    merge_patch,
    shape_of,
    strategic_merge_patch,
    with_values,
    without_values,
)
from egressproxy.kubeapi.write.pruning import pruned
from egressproxy.kubeapi.write.refusals import bad_request, conflict, invalid, refusal_of, title
from egressproxy.kubeapi.write.staging import FIRST_LINE, file_of, usage
from egressproxy.kubeapi.write.write import FieldValidation, Verb, Write, WriteRefused
from egressproxy.model.encoding import rfc3339

Manifest = dict[str, Any]

_CONSONANTS: Final = "bcdfghjklmnpqrstvwxz2456789"  # those of Kubernetes' generated names: no words
#: Bytes of one object as YAML, of all, and how many objects: a start reads them in some seconds.
MAX_OBJECT: Final = 4 * 1024 * 1024
MAX_STATE: Final = 64 * 1024 * 1024
MAX_OBJECTS: Final = 20_000
#: Of one answer, and of the text of each.
MAX_WARNINGS: Final = 50
MAX_PATH: Final = 200
#: What the server alone says of an object.
_SERVERS: Final = ("uid", "creationTimestamp", "generation", "resourceVersion", "selfLink", "deletionTimestamp")


class AppliedWrite(NamedTuple):
    """What `write`, which has a name now, makes of all objects: `resources` are these with the change. `resource` is
    the one that it is about, `text` its file, of `size` bytes.
    """

    write: Write
    resources: ResourceSet
    resource: Resource
    text: str
    file: Path
    is_new: bool = False
    is_same: bool = False
    warnings: tuple[str, ...] = ()
    size: int = 0


def changed(resources: ResourceSet, write: Write, folder: Path, waiting: tuple[int, int] = (0, 0)) -> AppliedWrite:
    """Work out a write. Raises WriteRefused. `waiting`: new objects, and bytes, that will be in the folder, too."""
    body = _body(write) if write.body or write.verb is not Verb.DELETE else {}
    write = replace(write, name=write.name or _new_name(write, body))
    try:
        return _changed(resources, write, folder, waiting, body)
    except WriteRefused as refused:
        refused.name = write.name
        raise


def _changed(resources: ResourceSet, write: Write, folder: Path, waiting: tuple[int, int], body: Any) -> AppliedWrite:
    old = resources.get(*write.key)
    current = _current(old, write, folder)
    if write.verb is Verb.DELETE:
        assert old is not None
        _check_preconditions(write, body, current)
        write = replace(write, is_dry_run=_is_tried(write, body))
        rest = ResourceSet(
            (each for each in resources.objects if each is not old), resources.warnings, read=resources.read
        )
        return AppliedWrite(write, rest, old, "", Path(old.origin.file))
    now = rfc3339(time())
    manifest, warnings = _made(write, current, body, now)
    _settle(manifest, write, current, now)
    if old is not None and current is not None and _without_times(manifest) == _without_times(current):
        return AppliedWrite(write, resources, old, "", Path(old.origin.file), is_same=True, warnings=warnings)
    file = file_of(folder, *write.key)
    text = FIRST_LINE + yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True)
    size = len(text.encode())
    _check_room(write, size, folder, waiting, is_new=old is None)
    try:
        (made,) = load_text(text, str(file), is_from_api=True).objects
    except ConfigError as error:
        raise refusal_of(error, write, file) from None
    assert made.key[:2] == write.key[:2]
    objects = [made if each is old else each for each in resources.objects]
    together = ResourceSet(objects if old is not None else [*objects, made], resources.warnings, read=resources.read)
    return AppliedWrite(write, together, made, text, file, current is None, False, warnings, size)


def _body(write: Write) -> Any:
    """Raises WriteRefused(400)."""
    try:
        body = read_body(write.body)
    except ValueError as error:
        raise bad_request(f"the body cannot be read as JSON or YAML: {error}") from None
    if write.verb is not Verb.JSON_PATCH and not isinstance(body, dict):
        raise bad_request("the body has to be an object")
    return body


def _new_name(write: Write, body: Any) -> str:
    metadata = body.get("metadata") if isinstance(body.get("metadata"), dict) else {}
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if isinstance(name, str) and name:
        return name
    if isinstance(prefix, str) and prefix:
        return prefix[:248] + "".join(secrets.choice(_CONSONANTS) for _ in range(5))
    causes = [("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")]
    raise invalid(write, causes, "metadata.name: Required value")


def _current(old: Resource | None, write: Write, folder: Path) -> Manifest | None:
    """The object as it is; None where there is none. Raises WriteRefused where the write is not for what is there."""
    if old is not None:
        if write.verb is Verb.CREATE:
            raise WriteRefused(409, "AlreadyExists", f"{write.full_name} already exists")
        return _kept(old, write, folder)
    if write.verb is Verb.CREATE:
        return None
    if write.kind == "Namespace" and write.resource_version and write.verb is not Verb.DELETE:
        # One that clients see because objects are in it: it can be changed as if it were there.
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": write.name}}
    if write.verb is not Verb.APPLY:
        raise WriteRefused(404, "NotFound", f"{write.full_name} not found")
    return None


def _kept(old: Resource, write: Write, folder: Path) -> Manifest:
    """The object as its file has it, a Secret's values too. Raises WriteRefused(403) for that of another source."""
    file = Path(old.origin.file)
    if file.parent != folder:
        message = f"it stands in {old.origin}, and what stands in files of --config is changed there"
        raise WriteRefused(403, "Forbidden", f"{write.full_name} is forbidden: {message}")
    try:
        kept = read_document(file.read_bytes())
    except (OSError, ValueError):
        kept = None
    if not isinstance(kept, dict):
        raise WriteRefused(500, "InternalError", f"{file} cannot be read any more")
    return kept


def _check_preconditions(write: Write, body: Any, current: Manifest | None) -> None:
    """metav1.DeleteOptions. Raises WriteRefused(409)."""
    required = body.get("preconditions") or {}
    if not isinstance(required, dict):
        raise bad_request("preconditions has to be an object")
    uid = ((current or {}).get("metadata") or {}).get("uid")
    if required.get("uid") not in (None, uid) or required.get("resourceVersion") not in (None, write.resource_version):
        raise conflict(write, "a precondition does not hold")


def _is_tried(write: Write, options: Mapping[str, Any]) -> bool:
    """A deletion says so in its body (metav1.DeleteOptions), or in the query as others. Raises WriteRefused(400)."""
    dry_run = options.get("dryRun")
    if dry_run not in (None, [], ["All"]):
        raise bad_request('dryRun of these options is not possible; write ["All"]')
    return write.is_dry_run or bool(dry_run)


def _made(write: Write, current: Manifest | None, body: Any, now: str) -> tuple[Manifest, tuple[str, ...]]:
    """The manifest that the client means, with managedFields, and what to warn of. Raises WriteRefused."""
    shape = shape_of(write.group, write.kind)
    if current is not None:
        current, _ = pruned(write.group, write.kind, current)
    made = _patched(write, current, body, shape)
    if not isinstance(made, dict):
        raise WriteRefused(422, "Invalid", "the patch leaves no object")
    _check_identity(made, write)
    _check_shape(made, write)
    metadata = made["metadata"]
    if write.verb is Verb.APPLY and metadata.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil in what is applied")
    _check_version(metadata, write)
    made, warnings = _known(_without_status(made, write), write)
    if write.is_secret:
        made = with_values(made, current, write)
    if write.verb is Verb.APPLY:
        return apply(current, made, write.manager, write.is_forced, shape, now), warnings
    return updated(current, made, write.manager, shape, now), warnings


def _patched(write: Write, current: Manifest | None, body: Any, shape: Shape) -> Any:
    if write.verb in (Verb.CREATE, Verb.REPLACE, Verb.APPLY):
        return body
    assert current is not None
    try:
        # The client has seen this: it says the version, so that it can be tested, and nothing of a Secret's values.
        shown = without_values(current) if write.is_secret else current
        target = {**shown, "metadata": {**(shown.get("metadata") or {}), "resourceVersion": write.resource_version}}
        if write.verb is Verb.MERGE_PATCH:
            return merge_patch(target, body)
        if write.verb is Verb.STRATEGIC_PATCH:
            return strategic_merge_patch(target, body, shape)
        return json_patch(target, body)
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError):
        # One that asks for a list where an object is, and so on: nothing of either is told.
        raise WriteRefused(422, "Invalid", f"the {write.verb.value} does not fit the object") from None


def _check_shape(made: Manifest, write: Write) -> None:
    """Raises WriteRefused(422) for what nothing can be worked out on."""
    if why := too_large(made):
        raise invalid(write, (), why)
    causes = [
        ("FieldValueInvalid", f"Invalid value: it has to be {what}", field)
        for field, what in faults(made, is_secret=write.is_secret)
    ]
    if causes:
        raise invalid(write, causes)


def _check_room(write: Write, size: int, folder: Path, waiting: tuple[int, int], *, is_new: bool) -> None:
    """Raises WriteRefused(403, 413): what the folder holds has to be read in good time at every start."""
    if size > MAX_OBJECT:
        message = f"{title(write)} is too large: {size} bytes of YAML, and {MAX_OBJECT} are possible"
        raise WriteRefused(413, "RequestEntityTooLarge", message)
    objects, total = (there + more for there, more in zip(usage(folder), waiting, strict=True))
    if (is_new and objects >= MAX_OBJECTS) or total + size > MAX_STATE:
        most = f"{MAX_OBJECTS} objects, {MAX_STATE} bytes"
        message = (
            f"exceeded quota: there are {objects} objects of {total} bytes in --state-dir, and {most} are possible"
        )
        raise WriteRefused(403, "Forbidden", f"{title(write)} is forbidden: {message}; delete some")


def _known(made: Manifest, write: Write) -> tuple[Manifest, tuple[str, ...]]:
    """Without the fields that its kind does not have, and a warning of each. Raises WriteRefused(400) if strict."""
    made, gone = pruned(write.group, write.kind, made)
    if not gone or write.field_validation is FieldValidation.IGNORE:
        return made, ()
    paths = [path[:MAX_PATH] for path in gone[:MAX_WARNINGS]]
    warnings = tuple(f'unknown field "{path}"' for path in paths)
    if write.field_validation is FieldValidation.STRICT:
        message = f"{title(write)} cannot be taken: strict decoding error: {', '.join(warnings)}"
        causes = [("FieldValueInvalid", "unknown field", path) for path in paths]
        raise WriteRefused(400, "BadRequest", message, causes)
    return made, warnings


def _check_identity(made: Manifest, write: Write) -> None:
    """Raises WriteRefused(400, 422) where the body says another object than the path."""
    metadata = made.get("metadata")
    if metadata is None:
        metadata = made["metadata"] = {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata has to be an object")
    identity = made.setdefault("kind", write.kind), made.setdefault("apiVersion", write.api_version)
    versions = str(identity[1]).rpartition("/")
    if identity[0] != write.kind or versions[0] != write.group or kind_class(str(identity[1]), write.kind) is None:
        raise bad_request(f"the body is {identity[1]} {identity[0]}, and the path {write.api_version} {write.kind}")
    namespace = metadata.get("namespace") or write.namespace
    if namespace != write.namespace:
        of_path = write.namespace or "none"
        raise bad_request(f"the namespace of the body ({namespace}) is not that of the path ({of_path})")
    if (metadata.get("name") or write.name) != write.name:
        raise bad_request(f"the name of the body ({metadata['name']}) is not that of the path ({write.name})")


def _check_version(metadata: Mapping[str, Any], write: Write) -> None:
    version = metadata.get("resourceVersion")
    if version and write.verb is Verb.CREATE:
        raise bad_request("resourceVersion should not be set on objects to be created")
    if version and str(version) != write.resource_version:
        raise conflict(
            write, "the object has been modified; please apply your changes to the latest version and try again"
        )


def _without_status(made: Manifest, write: Write) -> Manifest:
    """Status is the gateway's to write; that of a Pod is input."""
    if write.kind == "Pod" and not write.group:
        return dict(made)
    return {name: value for name, value in made.items() if name != "status"}


def _settle(manifest: Manifest, write: Write, current: Manifest | None, now: str) -> None:
    """What the server alone says: who the object is, since when, and how often it was changed."""
    before = (current or {}).get("metadata") or {}
    is_changed = current is not None and _counted(manifest, write) != _counted(current, write)
    manifest["metadata"] = {
        **{name: value for name, value in (manifest.get("metadata") or {}).items() if name not in _SERVERS},
        "name": write.name,
        **({"namespace": write.namespace} if write.namespace else {}),
        "uid": before.get("uid") or str(uuid4()),
        "creationTimestamp": before.get("creationTimestamp") or now,
        "generation": (before.get("generation") or 1) + is_changed,
    }


def _counted(manifest: Manifest, write: Write) -> Any:
    """What the generation counts the changes of: the spec; of a Secret also what is never shown, since the version that
    clients see counts changes of what is shown, and this is one of them.
    """
    if not write.is_secret:
        return manifest.get("spec")
    return manifest.get("data"), (manifest.get("metadata") or {}).get("annotations")


def _without_times(manifest: Manifest) -> Manifest:
    metadata = dict(manifest["metadata"])
    metadata["managedFields"] = [
        {name: value for name, value in entry.items() if name != "time"}
        for entry in metadata.get("managedFields") or ()
    ]
    return {**manifest, "metadata": metadata}
