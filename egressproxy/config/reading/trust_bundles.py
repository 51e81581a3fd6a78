"""ClusterTrustBundles out of PEM files and folders of them, such as those of the operating system and of cert-manager's
trust-manager.

Of a folder every file counts whose name ends in .pem, .crt or .cer, and the links that `openssl rehash` makes; each
certificate once. What stands beside certificates (comments, keys) is not taken over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from egressproxy.config.reading.problems import Problem
from egressproxy.model.secret import SecretSource

#: Of one file, and of a whole bundle; the CAs of an operating system have 250 KB.
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_FILES: Final = 4096
_COUNTS: Final = re.compile(r"(?!\.).+\.(?:pem|crt|cer)|[0-9a-f]{8}\.[0-9]+", re.IGNORECASE)
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def read_trust_bundles(sources: Iterable[SecretSource], problems: list[Problem]) -> Iterator[tuple[SecretSource, str]]:
    """The PEM of each of these sources that is a trust bundle. What cannot be read is added to the problems."""
    for source in sources:
        if not source.is_trust_bundle or source.path is None:
            continue
        certificates: dict[str, None] = {}
        for file in _files(source.path, problems):
            text = _read(file, problems)
            found = list(_certificates(text)) if text is not None else []
            if text is not None and not found:
                remedy = "convert it (openssl x509 -inform der -in FILE), or move it out of the folder"
                problems.append(Problem.of_file(file, "there is no certificate in PEM in this file", remedy))
            certificates.update(dict.fromkeys(found))
        bundle = "".join(certificates)
        if len(bundle) > MAX_BYTES:
            message = f"trust bundle {source.name} has more than {MAX_BYTES} bytes"
            problems.append(Problem.of_file(source.path, message, "name a folder with fewer certificates"))
        elif bundle:
            yield source, bundle


def _files(path: Path, problems: list[Problem]) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        found = sorted(each for each in path.iterdir() if _COUNTS.fullmatch(each.name))
    except OSError as error:
        problems.append(Problem.unreadable(path, error))
        return []
    if len(found) > MAX_FILES:
        problems.append(Problem.of_file(path, f"there are more than {MAX_FILES} files in this folder", "name another"))
        return []
    if not found:
        remedy = "the names of such files end in .pem, .crt or .cer"
        problems.append(Problem.of_file(path, "there is no file with certificates in this folder", remedy))
    return found


def _read(file: Path, problems: list[Problem]) -> str | None:
    if not file.is_file():  # a pipe would hold up a reload; a link may lead nowhere
        problems.append(Problem.of_file(file, "this is no regular file", "move it out of the folder"))
        return None
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES + 1).decode("latin-1")
    except OSError as error:
        problems.append(Problem.unreadable(file, error))
        return None


def _certificates(text: str) -> Iterator[str]:
    """Each block, with its lines as they are. One without an end is given as it is, so that it is reported."""
    for part in text.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        yield f"{_BEGIN}\n{chr(10).join(body.split())}\n{end}\n"
