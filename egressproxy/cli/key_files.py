"""Records of API keys in files: entries of Secrets in manifests, or a folder with a file for each entry. The rest of a
manifest, comments included, stays as it is.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from egressproxy.identity.api_keys import MAX_RECORD_BYTES

#: Manifests, by their suffix.
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_SECTIONS: Final = ("stringData", "data")
#: By its members the record of a key is told from other entries of Secrets.
_HASHED: Final = '"hash"'
#: In place of the end of an entry in JSON, or in flow style: its lines have others, too.
_IN_FLOW: Final = -1


class KeyFileError(Exception):
    """A file that cannot be read or changed; the text says why."""


class Entry(NamedTuple):
    """A record: its entry, the Secret ("namespace/name"), the file, and the lines of the file that have it."""

    name: str
    value: str
    secret: str
    file: Path
    first: int = 0
    end: int = 0


def entries(path: Path) -> Iterator[Entry]:
    """The records in a manifest, or in all of a folder. Raises KeyFileError, OSError."""
    if not path.is_dir():
        yield from _entries_of(path)
        return
    for file in sorted(each for each in path.rglob("*") if each.is_file() and not _is_hidden(each, path)):
        if file.suffix in _SUFFIXES:
            yield from _entries_of(file)
        elif file.stat().st_size <= MAX_RECORD_BYTES and _HASHED in (value := file.read_text(errors="replace")):
            inner = file.relative_to(path).parts  # as `run --secrets` has them: NAME/KEY, or NAMESPACE/NAME/KEY
            yield Entry(file.name, value, f"{inner[-3] if len(inner) > 2 else 'default'}/{file.parent.name}", file)


def new_manifest(secret: str, entry: str, record: str) -> str:
    """The manifest of a Secret ("namespace/name") with one record."""
    namespace, _, name = secret.partition("/")
    return (
        "apiVersion: v1\nkind: Secret\n"
        f"metadata: {{name: {name}, namespace: {namespace}}}\n"
        f"stringData:\n{_line('  ', entry, record)}"
    )


def add_entry(path: Path, secret: str, entry: str, record: str) -> None:
    """Write a record into the manifest of a Secret ("namespace/name", or "name" in any namespace), which is made if
    there is no file; or into a folder. Raises KeyFileError, OSError.
    """
    if path.is_dir():
        manifest = next((each for each in sorted(path.iterdir()) if each.suffix in _SUFFIXES), None)
        if manifest is not None:
            # `run --config` reads manifests alone: it would not see a file without their suffix.
            raise KeyFileError(f"{path} is a folder of manifests: name the one that gets the key, such as {manifest}")
        _write(path / entry, record)
        return
    if not path.parent.is_dir():
        raise KeyFileError(f"{path}: there is no folder {path.parent}: make it first")
    with _alone(path.parent):
        _add_to_manifest(path, secret, entry, record)


def _add_to_manifest(path: Path, secret: str, entry: str, record: str) -> None:
    if not path.exists():
        _write(path, new_manifest(secret if "/" in secret else f"default/{secret}", entry, record))
        return
    text = path.read_text()
    lines = (text if text.endswith("\n") else text + "\n").splitlines(keepends=True)
    there = list(_secrets(path))
    if not there:
        raise KeyFileError(f"{path} has no Secret: name a file that is not there yet, and it is made with one")
    found = [root for name, root in there if secret in (name, name.partition("/")[2])]
    if len(found) != 1:
        how_many = "has no Secret" if not found else "has several Secrets"
        names = ", ".join(name for name, _ in there)
        raise KeyFileError(f"{path} {how_many} {secret}: write --secret with one that it has: {names}")
    root, section = found[0], _child(found[0], "stringData")
    if root.flow_style or (isinstance(section, yaml.MappingNode) and section.flow_style):
        raise KeyFileError(f"{path}: write the Secret {secret} in block style, a line for each member and entry")
    pad = " " * root.start_mark.column
    if isinstance(section, yaml.MappingNode):
        lines.insert(section.start_mark.line, _line(" " * section.start_mark.column, entry, record))
    elif section is not None:  # empty
        lines.insert(section.end_mark.line + 1, _line(f"{pad}  ", entry, record))
    else:
        at = _end(root)
        lines[at:at] = [f"{pad}stringData:\n", _line(f"{pad}  ", entry, record)]
    _write(path, "".join(lines))


def remove_entry(path: Path, entry: str) -> None:
    """Remove a record from the Secrets of a manifest, or the file of it from a folder. Raises KeyFileError, OSError."""
    found = {each.file: each.end for each in entries(path) if each.name == entry}
    if not found:
        raise KeyFileError(f"{path} has no key {entry}; `egressproxy keys list {path}` lists those that are there")
    for file, end in found.items():
        if not end:
            file.unlink()
            continue
        with _alone(file.parent):
            _remove_from_manifest(file, entry)


def _remove_from_manifest(file: Path, entry: str) -> None:
    ours = [each for each in _entries_of(file) if each.name == entry]
    if any(each.end == _IN_FLOW for each in ours):
        raise KeyFileError(f"{file}: write the Secret {ours[0].secret} in block style, a line for each entry")
    lines = file.read_text().splitlines(keepends=True)
    for each in sorted(ours, key=lambda one: -one.first):
        del lines[each.first : each.end]
    _write(file, "".join(lines))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """A context in which one process at a time changes files of this folder. Otherwise a revoked key comes back when
    another process writes what it read before. Raises OSError.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _entries_of(path: Path) -> Iterator[Entry]:
    for secret, root in _secrets(path):
        for name in _SECTIONS:
            section = _child(root, name)
            for key, value in section.value if isinstance(section, yaml.MappingNode) else ():
                text = str(value.value)
                if name == "data":
                    try:
                        text = base64.b64decode(text, validate=True).decode()
                    except (binascii.Error, UnicodeDecodeError):
                        continue
                if _HASHED in text:
                    is_flow = root.flow_style or section.flow_style
                    end = _IN_FLOW if is_flow else _end(value)
                    yield Entry(key.value, text, secret, path, key.start_mark.line, end)


def _secrets(path: Path) -> Iterator[tuple[str, yaml.MappingNode]]:
    """The Secrets of a manifest: "namespace/name" and node. Raises KeyFileError."""
    try:
        documents = list(yaml.compose_all(path.read_text(), Loader=yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        raise KeyFileError(f"{path}{f':{where.line + 1}' if where else ''}: this is no YAML") from None
    for root in documents:
        if isinstance(root, yaml.MappingNode) and _text(root, "kind") == "Secret":
            metadata = _child(root, "metadata")
            yield f"{_text(metadata, 'namespace') or 'default'}/{_text(metadata, 'name')}", root


def _child(node: Any, name: str) -> Any:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


def _text(node: Any, name: str) -> str:
    child = _child(node, name)
    return str(child.value) if isinstance(child, yaml.ScalarNode) else ""


def _end(node: yaml.Node) -> int:
    """The line behind a node. That of a block ends where the next begins."""
    mark = node.end_mark
    return mark.line if mark.column == 0 else mark.line + 1


def _line(pad: str, entry: str, record: str) -> str:
    quoted = record.replace("'", "''")
    return f"{pad}{entry}: '{quoted}'\n"


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _write(path: Path, text: str) -> None:
    """In one step, for readers; the file keeps its mode."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            made.chmod(path.stat().st_mode & 0o7777)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
