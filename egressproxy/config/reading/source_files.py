"""The files of a configuration: manifests of a folder, Secrets and trust bundles in raw files.

A mounted Secret is a folder with a file for each key, which is a symbolic link into a folder. Renaming the link
`..data` exchanges that folder as a whole. So links are followed, and names that start with `..` are ignored. A Secret
may also come from an environment variable.

ClusterTrustBundles come from PEM files and folders, such as those of the operating system and of cert-manager's
trust-manager. Of a folder all files with the suffix .pem, .crt or .cer count, and the links of `openssl rehash`; each
certificate once. Other content (comments, keys) is dropped.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from egressproxy.config.reading.problems import Problem
from egressproxy.model.secret import SecretSource

SUFFIXES: Final = (".yaml", ".yml", ".json")
#: The most bytes of one Secret, as in Kubernetes (v1 Secret, MaxSecretSize).
MAX_BYTES: Final = 1024 * 1024
#: The most files in one folder.
MAX_FILES: Final = 1024
#: The most places in the text of an origin.
MAX_PLACES: Final = 5
#: The keys of a Secret (v1 Secret, data), and the names of objects and namespaces.
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAMES: Final = (("namespace", re.compile(_LABEL)), ("name", re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")))
#: The most reads of a mounted Secret that is exchanged meanwhile.
MAX_LOOKS: Final = 5
#: The most bytes of a certificate file, and of a whole bundle; the CAs of an operating system have 250 KB.
MAX_BUNDLE: Final = 4 * 1024 * 1024
MAX_BUNDLE_FILES: Final = 4096
_OURS: Final = re.compile(r"(?!\.\.).+", re.DOTALL)
_COUNTS: Final = re.compile(r"(?!\.).+\.(?:pem|crt|cer)|[0-9a-f]{8}\.[0-9]+", re.IGNORECASE)
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@dataclass(slots=True)
class SecretData:
    """One Secret: its entries by key, and their origins."""

    namespace: str
    name: str
    place: str
    data: dict[str, bytes] = field(default_factory=dict, repr=False)
    origins: dict[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """The origin for people: all places, each once, or the folders of many."""
        origins = list(dict.fromkeys(self.origins.values()))
        if len(origins) > MAX_PLACES:
            origins = list(dict.fromkeys(os.path.dirname(origin) or origin for origin in origins))
        more = f" and {len(origins) - MAX_PLACES} more" if len(origins) > MAX_PLACES else ""
        return ", ".join(origins[:MAX_PLACES]) + more or self.place


def manifest_files(folder: Path) -> list[Path]:
    """The manifests of a folder, by name. Symbolic links are followed, as a mounted ConfigMap needs."""
    found = (entry for entry in folder.iterdir() if entry.suffix in SUFFIXES and not entry.name.startswith("."))
    return sorted(entry for entry in found if not entry.is_dir())


def read_secrets(sources: Iterable[SecretSource], problems: list[Problem]) -> list[SecretData]:
    """The existing Secrets; faults are added to `problems`, without values."""
    made: dict[tuple[str, str], SecretData] = {}
    for source in sources:
        for one in _secrets_of(source, problems):
            if not _can_be_named(one, problems):
                continue
            secret = made.setdefault((one.namespace, one.name), SecretData(one.namespace, one.name, str(one)))
            for key, value, origin in _entries(one, problems):
                if key in secret.data:
                    message = f"key {key} of Secret {one.namespace}/{one.name} is there already, from"
                    problems.append(Problem.of_file(origin, f"{message} {secret.origins[key]}", "keep one of them"))
                    continue
                secret.data[key] = value
                secret.origins[key] = origin
    for secret in made.values():
        size = sum(map(len, secret.data.values()))
        if size > MAX_BYTES:
            message = f"Secret {secret.namespace}/{secret.name} has more than {MAX_BYTES} bytes"
            problems.append(Problem.of_file(secret.origin, message, "a Secret has credentials and certificates alone"))
    return list(made.values())


def secret_folders(sources: Iterable[SecretSource]) -> Iterator[Path]:
    """The existing folders to watch."""
    for source in sources:
        path = source.path
        if path is None:
            continue
        if not path.is_dir():
            yield path.parent
            continue
        yield path
        if not source.name:
            for folder in _folders(path):
                yield folder
                yield from _folders(folder)


def read_trust_bundles(sources: Iterable[SecretSource], problems: list[Problem]) -> Iterator[tuple[SecretSource, str]]:
    """The PEM of each source that is a trust bundle. Read errors are added to `problems`."""
    for source in sources:
        if not source.is_trust_bundle or source.path is None:
            continue
        certificates: dict[str, None] = {}
        for file in _bundle_files(source.path, problems):
            data = _content(file, MAX_BUNDLE, problems)
            found = list(_certificates(data.decode("latin-1"))) if data is not None else []
            if data is not None and not found:
                remedy = "convert it (openssl x509 -inform der -in FILE), or move it out of the folder"
                problems.append(Problem.of_file(file, "there is no certificate in PEM in this file", remedy))
            certificates.update(dict.fromkeys(found))
        bundle = "".join(certificates)
        if len(bundle) > MAX_BUNDLE:
            message = f"trust bundle {source.name} has more than {MAX_BUNDLE} bytes"
            problems.append(Problem.of_file(source.path, message, "name a folder with fewer certificates"))
        elif bundle:
            yield source, bundle


def _secrets_of(source: SecretSource, problems: list[Problem]) -> Iterator[SecretSource]:
    """The source itself, or one for each Secret below a folder of Secrets."""
    if source.name or source.path is None:
        yield source
        return
    for folder in _listed(source.path, problems):
        if not folder.is_dir():
            message = "this is no folder: a folder of Secrets has one for each Secret, or namespace"
            problems.append(Problem.of_file(folder, message, "move it into one, or out of here"))
        elif inner := list(_folders(folder)):
            namespace = folder.name
            yield from (replace(source, namespace=namespace, name=each.name, path=each) for each in inner)
            for stray in _listed(folder, problems):
                if not stray.is_dir():
                    message = f"a file beside the folders of the Secrets of namespace {namespace}"
                    problems.append(Problem.of_file(stray, message, "move it into the folder of a Secret"))
        else:
            yield replace(source, name=folder.name, path=folder)


def _can_be_named(source: SecretSource, problems: list[Problem]) -> bool:
    for (what, form), name in zip(_NAMES, (source.namespace, source.name), strict=True):
        if not form.fullmatch(name):
            remedy = "lower case letters, digits and -, as Kubernetes has them"
            problems.append(Problem.of_file(str(source), f"{name!r} cannot be the {what} of a Secret", remedy))
            return False
    return True


def _entries(source: SecretSource, problems: list[Problem]) -> Iterator[tuple[str, bytes, str]]:
    """Key, value and place of each entry."""
    if source.path is None:
        yield source.key, source.value.reveal() if source.value is not None else b"", str(source)
        return
    if not source.path.is_dir():
        key = source.key or source.path.name
        value = _read(key, source.path, problems)
        if value is not None:
            yield key, value, str(source.path)
    elif source.key:
        message = f"this is a folder, and one value is wanted for key {source.key}"
        problems.append(Problem.of_file(source.path, message, "name a file, or leave the key out"))
    else:
        yield from _of_folder(source.path, problems)


def _of_folder(folder: Path, problems: list[Problem]) -> list[tuple[str, bytes, str]]:
    """An entry for each file. The entries of a mounted Secret are read atomically: certificate and key must match."""
    before = len(problems)
    found: list[tuple[str, bytes, str]] = []
    for _ in range(MAX_LOOKS):
        mounted = folder / "..data"
        real = Path(os.path.realpath(mounted)) if mounted.is_dir() else folder
        del problems[before:]
        found = []
        left = MAX_BYTES
        for file in _listed(real, problems):
            value = _read(file.name, file, problems)
            if value is not None:
                found.append((file.name, value, str(folder / file.name)))
                left -= len(value)
            if left < 0:
                break  # too large for a Secret
        if real == folder or real == Path(os.path.realpath(mounted)):
            break  # otherwise exchanged meanwhile: read again
    return found


def _listed(folder: Path, problems: list[Problem], form: re.Pattern[str] = _OURS, most: int = MAX_FILES) -> list[Path]:
    """The folder's entries with names of this form: by default all except Kubernetes' internal ones."""
    try:
        found = sorted(each for each in folder.iterdir() if form.fullmatch(each.name))
    except OSError as error:
        problems.append(Problem.unreadable(folder, error))
        return []
    if len(found) > most:
        problems.append(Problem.of_file(folder, f"there is more than {most} in this folder", "name another one"))
        return []
    return found


def _folders(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(each for each in folder.iterdir() if not each.name.startswith("..") and each.is_dir())
    except OSError:
        return


def _read(key: str, file: Path, problems: list[Problem]) -> bytes | None:
    """The content of a regular file, for this key, without one trailing newline, which editors add."""
    if not _KEY.fullmatch(key):
        remedy = "letters, digits, -, _ and ., as Kubernetes has them; or say the key: --secret NAME:KEY=PATH"
        problems.append(Problem.of_file(file, f"{key!r} cannot be a key of a Secret", remedy))
        return None
    data = _content(file, MAX_BYTES + 1, problems)
    return data and (data.removesuffix(b"\r\n") if data.endswith(b"\r\n") else data.removesuffix(b"\n"))


def _content(file: Path, most: int, problems: list[Problem]) -> bytes | None:
    """The content of a regular file, at most one byte more than `most`."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold up a reload
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            problems.append(Problem.of_file(file, "this is no regular file", "move it elsewhere"))
            return None
        with open(descriptor, "rb") as opened:
            return opened.read(most + 1)
    except OSError as error:
        problems.append(Problem.unreadable(file, error))
        return None


def _bundle_files(path: Path, problems: list[Problem]) -> list[Path]:
    if not path.is_dir():
        return [path]
    before = len(problems)
    found = _listed(path, problems, _COUNTS, MAX_BUNDLE_FILES)
    if not found and len(problems) == before:
        remedy = "the names of such files end in .pem, .crt or .cer"
        problems.append(Problem.of_file(path, "there is no file with certificates in this folder", remedy))
    return found


def _certificates(text: str) -> Iterator[str]:
    """The certificate blocks, unchanged. An unterminated block is included, so that it is reported."""
    for part in text.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        yield f"{_BEGIN}\n{chr(10).join(body.split())}\n{end}\n"
