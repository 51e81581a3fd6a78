"""What an object becomes by a write: from the objects that there are and a request to a manifest, or a refusal.

Source: Kubernetes API conventions (metadata, optimistic concurrency, Status), API concepts (dry run, generated names).
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import yaml

from egressproxy.config.reading.load import ResourceSet, load_text
from egressproxy.config.reading.problems import ConfigError, Problem
from egressproxy.config.resources.core import REDACTED
from egressproxy.config.resources.kinds import kind_class
from egressproxy.config.resources.meta import LAST_APPLIED, Resource
from egressproxy.kubeapi.write.bodies import read_body, read_document
from egressproxy.kubeapi.write.checks import faults, too_large
from egressproxy.kubeapi.write.list_map_keys import Shape, shape_of
from egressproxy.kubeapi.write.managed_fields import apply, updated
from egressproxy.kubeapi.write.patches import json_patch, merge_patch, strategic_merge_patch
from egressproxy.kubeapi.write.pruning import pruned
from egressproxy.kubeapi.write.staging import FIRST_LINE, file_of, usage
from egressproxy.kubeapi.write.write import FieldValidation, Verb, Write, WriteRefused

__all__ = ["AppliedWrite", "changed", "refusal_of", "unreadable"]

Manifest = dict[str, Any]

_CONSONANTS: Final = "bcdfghjklmnpqrstvwxz2456789"  # those of Kubernetes' generated names: no words
#: Bytes of one object as YAML, of all, and how many objects: a start reads them in some seconds.
MAX_OBJECT: Final = 4 * 1024 * 1024
MAX_STATE: Final = 64 * 1024 * 1024
MAX_OBJECTS: Final = 20_000
#: Of one answer, and of the text of each.
MAX_WARNINGS: Final = 50
MAX_PATH: Final = 200
#: Of one refusal, and characters of each; and problems of other objects that it tells: `check` shows the rest.
MAX_CAUSES: Final = 100
MAX_CAUSE: Final = 1000
MAX_OTHERS: Final = 10
#: What the server alone says of an object.
_SERVERS: Final = ("uid", "creationTimestamp", "generation", "resourceVersion", "selfLink", "deletionTimestamp")


class AppliedWrite(NamedTuple):
    """`resources` are all objects with the change; `resource` is the one that it is about, `text` its file, of so many
    `octets`.
    """

    resources: ResourceSet
    resource: Resource
    text: str
    file: Path
    is_new: bool
    is_same: bool
    warnings: tuple[str, ...] = ()
    is_dry_run: bool = False
    octets: int = 0


def changed(resources: ResourceSet, write: Write, folder: Path, waiting: tuple[int, int] = (0, 0)) -> AppliedWrite:
    """Work out a write. Raises WriteRefused. `waiting`: new objects, and octets, that will be in the folder, too."""
    kind = kind_class(f"{write.group}/{write.version}" if write.group else write.version, write.kind)
    assert kind is not None, "a kind that is served is understood"
    body = _body(write) if write.body or write.verb is not Verb.DELETE else {}
    name = write.name or _new_name(write, body)
    try:
        return _changed(resources, write, folder, waiting, kind, body, name)
    except WriteRefused as refused:
        refused.name = name
        raise


def _changed(
    resources: ResourceSet,
    write: Write,
    folder: Path,
    waiting: tuple[int, int],
    kind: type[Resource],
    body: Any,
    name: str,
) -> AppliedWrite:
    old = resources.get(write.group, write.kind, write.namespace, name)
    implied = _implied(write, name)
    _check_existence(write, name, old is not None, implied is not None)
    current = _kept(old, write, folder) if old is not None else implied
    if write.verb is Verb.DELETE:
        _check_preconditions(write, name, body, current)
        assert old is not None
        assert current is not None
        rest = ResourceSet((each for each in resources.objects if each is not old), resources.warnings)
        return AppliedWrite(rest, old, "", Path(old.origin.file), False, False, is_dry_run=_is_tried(write, body))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    manifest, warnings = _made(write, name, current, body, now)
    _settle(manifest, write, name, current, now)
    if old is not None and current is not None and _without_times(manifest) == _without_times(current):
        return AppliedWrite(resources, old, "", Path(old.origin.file), False, True, warnings, write.is_dry_run)
    file = file_of(folder, write.group, write.kind, write.namespace, name)
    text = FIRST_LINE + yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True)
    octets = len(text.encode())
    _check_room(write, name, octets, folder, waiting, is_new=old is None)
    made = _validated(text, write, name, kind, file)
    objects = [made if each is old else each for each in resources.objects]
    together = ResourceSet(objects if old is not None else [*objects, made], resources.warnings)
    return AppliedWrite(together, made, text, file, current is None, False, warnings, write.is_dry_run, octets)


def _body(write: Write) -> Any:
    """Raises WriteRefused(400)."""
    try:
        body = read_body(write.body)
    except ValueError as error:
        raise WriteRefused(400, "BadRequest", f"the body cannot be read as JSON or YAML: {error}") from None
    if write.verb is not Verb.JSON_PATCH and not isinstance(body, dict):
        raise WriteRefused(400, "BadRequest", "the body has to be an object")
    return body


def _new_name(write: Write, body: Any) -> str:
    metadata = body.get("metadata") if isinstance(body.get("metadata"), dict) else {}
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if isinstance(name, str) and name:
        return name
    if isinstance(prefix, str) and prefix:
        return prefix[:248] + "".join(secrets.choice(_CONSONANTS) for _ in range(5))
    causes = [("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")]
    raise WriteRefused(422, "Invalid", f"{_title(write, '')} is invalid: metadata.name: Required value", causes)


def _title(write: Write, name: str) -> str:
    return f'{write.kind}{"." if write.group else ""}{write.group} "{name}"'


def _resource(write: Write) -> str:
    return f"{write.plural}.{write.group}" if write.group else write.plural


def _kept(old: Resource, write: Write, folder: Path) -> Manifest:
    """The object as its file has it, a Secret's values too. Raises WriteRefused(403) for that of another source."""
    file = Path(old.origin.file)
    if file.parent != folder:
        message = (
            f'{_resource(write)} "{old.name}" is forbidden: it stands in {old.origin}, and what stands in files of'
            " --config is changed there"
        )
        raise WriteRefused(403, "Forbidden", message)
    try:
        kept = read_document(file.read_bytes())
    except (OSError, ValueError):
        kept = None
    if not isinstance(kept, dict):
        raise WriteRefused(500, "InternalError", f"{file} cannot be read any more")
    return kept


def _implied(write: Write, name: str) -> Manifest | None:
    """A namespace that clients see because objects are in it: it can be changed as if it were there."""
    if write.kind != "Namespace" or write.verb in (Verb.CREATE, Verb.DELETE) or not write.resource_version:
        return None
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _check_existence(write: Write, name: str, is_there: bool, is_implied: bool) -> None:
    named = f'{_resource(write)} "{name}"'
    if write.verb is Verb.CREATE:
        if is_there:
            raise WriteRefused(409, "AlreadyExists", f"{named} already exists")
    elif write.verb is not Verb.APPLY and not is_there and not is_implied:
        raise WriteRefused(404, "NotFound", f"{named} not found")


def _check_preconditions(write: Write, name: str, body: Any, current: Manifest | None) -> None:
    """metav1.DeleteOptions. Raises WriteRefused(409)."""
    wanted = body.get("preconditions") or {}
    if not isinstance(wanted, dict):
        raise WriteRefused(400, "BadRequest", "preconditions has to be an object")
    uid = ((current or {}).get("metadata") or {}).get("uid")
    if wanted.get("uid") not in (None, uid) or wanted.get("resourceVersion") not in (None, write.resource_version):
        message = f'Operation cannot be fulfilled on {_resource(write)} "{name}": a precondition does not hold'
        raise WriteRefused(409, "Conflict", message)


def _is_tried(write: Write, options: Mapping[str, Any]) -> bool:
    """A deletion says so in its body (metav1.DeleteOptions), or in the query as others. Raises WriteRefused(400)."""
    said = options.get("dryRun")
    if said not in (None, [], ["All"]):
        raise WriteRefused(400, "BadRequest", 'dryRun of these options is not possible; write ["All"]')
    return write.is_dry_run or bool(said)


def _made(write: Write, name: str, current: Manifest | None, body: Any, now: str) -> tuple[Manifest, tuple[str, ...]]:
    """The manifest that the client means, with managedFields, and what to warn of. Raises WriteRefused."""
    shape = shape_of(write.group, write.kind)
    if current is not None:
        current, _ = pruned(write.group, write.kind, current)
    if write.verb is Verb.APPLY:
        _check_identity(body, write, name)
        _check_shape(body, write, name)
        metadata = body.get("metadata") or {}
        if metadata.get("managedFields"):
            raise WriteRefused(400, "BadRequest", "metadata.managedFields must be nil in what is applied")
        _check_version(metadata, write, name)
        applied, warnings = _known(_without_status(body, write), write, name)
        if write.kind == "Secret" and not write.group:
            applied = _with_values(applied, current, write, name)
        return apply(current, applied, write.manager, write.is_forced, shape, now), warnings
    made = _patched(write, current, body, shape)
    if not isinstance(made, dict):
        raise WriteRefused(422, "Invalid", "the patch leaves no object")
    _check_identity(made, write, name)
    _check_shape(made, write, name)
    _check_version(made.get("metadata") or {}, write, name)
    made, warnings = _known(_without_status(made, write), write, name)
    if write.kind == "Secret" and not write.group:
        made = _with_values(made, current, write, name)
    return updated(current, made, write.manager, shape, now), warnings


def _patched(write: Write, current: Manifest | None, body: Any, shape: Shape) -> Any:
    """The object with the patch, or what the body is. Raises WriteRefused."""
    try:
        match write.verb:
            case Verb.MERGE_PATCH:
                return merge_patch(_at_version(current, write), body)
            case Verb.STRATEGIC_PATCH:
                return strategic_merge_patch(_at_version(current, write), body, shape)
            case Verb.JSON_PATCH:
                return json_patch(_at_version(current, write), body)
            case _:
                return body
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError):
        # One that asks for a list where an object is, and so on: nothing of either is told.
        raise WriteRefused(422, "Invalid", f"the {write.verb.value} does not fit the object") from None


def _check_shape(made: Manifest, write: Write, name: str) -> None:
    """Raises WriteRefused(422) for what nothing can be worked out on."""
    if why := too_large(made):
        raise WriteRefused(422, "Invalid", f"{_title(write, name)} is invalid: {why}")
    is_secret = write.kind == "Secret" and not write.group
    causes = [
        ("FieldValueInvalid", f"Invalid value: it has to be {what}", field)
        for field, what in faults(made, is_secret=is_secret)
    ]
    if causes:
        told = ", ".join(f"{field}: {message}" for _, message, field in causes)
        raise WriteRefused(422, "Invalid", f"{_title(write, name)} is invalid: {told}", causes)


def _check_room(write: Write, name: str, octets: int, folder: Path, waiting: tuple[int, int], *, is_new: bool) -> None:
    """Raises WriteRefused(403, 413): what the folder holds has to be read in good time at every start."""
    if octets > MAX_OBJECT:
        message = f"{_title(write, name)} is too large: {octets} bytes of YAML, and {MAX_OBJECT} are possible"
        raise WriteRefused(413, "RequestEntityTooLarge", message)
    objects, size = (there + more for there, more in zip(usage(folder), waiting, strict=True))
    if (is_new and objects >= MAX_OBJECTS) or size + octets > MAX_STATE:
        most = f"{MAX_OBJECTS} objects, {MAX_STATE} bytes"
        message = f"exceeded quota: there are {objects} objects of {size} bytes in --state-dir, and {most} are possible"
        raise WriteRefused(403, "Forbidden", f"{_title(write, name)} is forbidden: {message}; delete some")


def _known(made: Manifest, write: Write, name: str) -> tuple[Manifest, tuple[str, ...]]:
    """Without the fields that its kind does not have, and a warning of each. Raises WriteRefused(400) if strict."""
    made, gone = pruned(write.group, write.kind, made)
    if not gone or write.field_validation is FieldValidation.IGNORE:
        return made, ()
    warnings = tuple(f'unknown field "{path[:MAX_PATH]}"' for path in gone[:MAX_WARNINGS])
    if write.field_validation is FieldValidation.STRICT:
        message = f"{_title(write, name)} cannot be taken: strict decoding error: {', '.join(warnings)}"
        paths = (path[:MAX_PATH] for path in gone[:MAX_WARNINGS])
        causes = [("FieldValueInvalid", "unknown field", path) for path in paths]
        raise WriteRefused(400, "BadRequest", message, causes)
    return made, warnings


def _at_version(current: Manifest | None, write: Write) -> Manifest:
    """What a patch is applied to is what the client sees: it says the version, so that it can be tested, and nothing of
    a Secret's values, which a JSON patch could test one by one, or copy to where they are shown.
    """
    assert current is not None
    metadata = {**(current.get("metadata") or {}), "resourceVersion": write.resource_version}
    if write.kind != "Secret" or write.group:
        return {**current, "metadata": metadata}
    if metadata.get("annotations"):
        metadata["annotations"] = dict.fromkeys(metadata["annotations"], "redacted")
    shown = {**current, "metadata": metadata}
    if shown.get("data"):
        shown["data"] = dict.fromkeys(shown["data"], REDACTED)
    return shown


def _check_identity(made: Manifest, write: Write, name: str) -> None:
    """Raises WriteRefused(400, 422) where the body says another object than the path."""
    api_version = f"{write.group}/{write.version}" if write.group else write.version
    metadata = made.get("metadata")
    if metadata is None:
        metadata = made["metadata"] = {}
    if not isinstance(metadata, dict):
        raise WriteRefused(400, "BadRequest", "metadata has to be an object")
    said = made.setdefault("kind", write.kind), made.setdefault("apiVersion", api_version)
    versions = str(said[1]).rpartition("/")
    if said[0] != write.kind or versions[0] != write.group or kind_class(str(said[1]), write.kind) is None:
        raise WriteRefused(
            400, "BadRequest", f"the body is {said[1]} {said[0]}, and the path {api_version} {write.kind}"
        )
    namespace = metadata.get("namespace") or write.namespace
    if namespace != write.namespace:
        message = f"the namespace of the body ({namespace}) is not that of the path ({write.namespace or 'none'})"
        raise WriteRefused(400, "BadRequest", message)
    if (metadata.get("name") or name) != name:
        raise WriteRefused(
            400, "BadRequest", f"the name of the body ({metadata['name']}) is not that of the path ({name})"
        )


def _check_version(metadata: Mapping[str, Any], write: Write, name: str) -> None:
    wanted = metadata.get("resourceVersion")
    if wanted and write.verb is Verb.CREATE:
        raise WriteRefused(400, "BadRequest", "resourceVersion should not be set on objects to be created")
    if wanted and str(wanted) != write.resource_version:
        message = (
            f'Operation cannot be fulfilled on {_resource(write)} "{name}": the object has been modified; please apply'
            " your changes to the latest version and try again"
        )
        raise WriteRefused(409, "Conflict", message)


def _without_status(made: Manifest, write: Write) -> Manifest:
    """Status is the gateway's to write; that of a Pod is input."""
    if write.kind == "Pod" and not write.group:
        return dict(made)
    return {name: value for name, value in made.items() if name != "status"}


def _with_values(made: Manifest, current: Manifest | None, write: Write, name: str) -> Manifest:
    """A Secret as it is kept: clients see its values redacted, and send that back for those that they do not change."""
    old = (current or {}).get("data") or {}
    data = dict(made.get("data") or {})
    for key, text in (made.get("stringData") or {}).items():
        data[key] = b64encode((text or "").encode()).decode()
    for key, value in data.items():
        if value == REDACTED:
            if key not in old:
                message = f"Invalid value: this is how values are shown, and none is kept for {key}"
                causes = [("FieldValueInvalid", message, f"data.{key}")]
                raise WriteRefused(422, "Invalid", f"{_title(write, name)} is invalid: data.{key}: {message}", causes)
            data[key] = old[key]
    metadata = dict(made.get("metadata") or {})
    kept = ((current or {}).get("metadata") or {}).get("annotations") or {}
    annotations = {
        key: kept.get(key, value) if value == "redacted" else value
        for key, value in (metadata.get("annotations") or {}).items()
        if key != LAST_APPLIED  # it has the values, too
    }
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    made = {**made, "metadata": metadata}
    rest = {key: value for key, value in made.items() if key not in ("data", "stringData")}
    return {**rest, "data": data} if data else rest


def _settle(manifest: Manifest, write: Write, name: str, current: Manifest | None, now: str) -> None:
    """What the server alone says: who the object is, since when, and how often it was changed."""
    metadata = manifest["metadata"] = dict(manifest.get("metadata") or {})
    before = (current or {}).get("metadata") or {}
    for field in _SERVERS:
        metadata.pop(field, None)
    metadata["name"] = name
    if write.namespace:
        metadata["namespace"] = write.namespace
    metadata["uid"] = before.get("uid") or str(uuid4())
    metadata["creationTimestamp"] = before.get("creationTimestamp") or now
    generation = before.get("generation") or 1
    if current is not None and _counted(manifest, write) != _counted(current, write):
        generation += 1
    metadata["generation"] = generation


def _counted(manifest: Manifest, write: Write) -> Any:
    """What the generation counts the changes of: the spec; of a Secret also what is never shown, since the version that
    clients see counts changes of what is shown, and this is one of them.
    """
    if write.kind != "Secret" or write.group:
        return manifest.get("spec")
    return manifest.get("data"), (manifest.get("metadata") or {}).get("annotations")


def _without_times(manifest: Manifest) -> Manifest:
    metadata = dict(manifest["metadata"])
    metadata["managedFields"] = [
        {name: value for name, value in entry.items() if name != "time"}
        for entry in metadata.get("managedFields") or ()
    ]
    return {**manifest, "metadata": metadata}


def _validated(text: str, write: Write, name: str, kind: type[Resource], file: Path) -> Resource:
    """Raises WriteRefused(422) with a cause for every field that is wrong."""
    try:
        (made,) = load_text(text, str(file), is_from_api=True).objects
    except ConfigError as error:
        raise refusal_of(error, write, name, file) from None
    assert made.key[:2] == (kind.GROUP, kind.KIND)
    return made


def unreadable(problems: Sequence[Problem]) -> WriteRefused:
    """What is there already is refused: nothing can be written beside it."""
    told = "; ".join(str(problem)[:MAX_CAUSE] for problem in problems[:MAX_OTHERS])
    more = f"; and {len(problems) - MAX_OTHERS} more" if len(problems) > MAX_OTHERS else ""
    message = f"the configuration cannot be read, with or without this: {told}{more}"
    return WriteRefused(503, "ServiceUnavailable", message)


def refusal_of(error: ConfigError, write: Write, name: str, file: Path) -> WriteRefused:
    """A configuration that is refused: because of this object (422), or without it already (503)."""
    others = [problem for problem in error.problems if problem.file not in ("", str(file))]
    if others:
        return unreadable(others)
    causes = []
    for problem in error.problems[:MAX_CAUSES]:
        kind = "Required" if "missing" in problem.message else "Invalid"
        remedy = f" ({problem.remedy})" if problem.remedy else ""
        message = f"{kind} value: {problem.message}{remedy}"[:MAX_CAUSE]
        causes.append((f"FieldValue{kind}", message, problem.field_path))
    if len(error.problems) > MAX_CAUSES:
        causes.append(("FieldValueInvalid", f"and {len(error.problems) - MAX_CAUSES} more", "<nil>"))
    told = ", ".join(f"{field}: {message}" if field else message for _, message, field in causes)
    return WriteRefused(422, "Invalid", f"{_title(write, name)} is invalid: {told}", causes, name)
