"""Whether audit chains are whole: each record has its hash and that of the one before, and the last is the head's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from egressproxy.model.secret import SecretBytes
from egressproxy.operators.audit.record_chain import (
    FIRST,
    HMAC_SHA256,
    BadLine,
    Link,
    chains_in,
    head_path,
    read_head,
    read_line,
)


class Anchor(NamedTuple):
    """A record that was seen before: its chain, number and hash. One kept elsewhere shows that a chain was replaced."""

    chain: str
    seq: int
    hash: str


class Finding(NamedTuple):
    """Something that is wrong, or that the writer has told. `line` counts from 1; 0: the file as a whole."""

    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


@dataclass(slots=True)
class ChainReport:
    """What was found in one chain. `end` is its last record."""

    chain: str
    records: int = 0
    files: int = 0
    end: Link = field(default_factory=Link)
    findings: list[Finding] = field(default_factory=list)


def verified(
    folder: Path, key: SecretBytes | None, anchors: Iterable[Anchor] = (), *, is_partial: bool = False
) -> list[ChainReport]:
    """A report for each chain of a folder. `is_partial`: the first files may have gone to an archive.

    `key`: of HMAC; chains that have another algorithm are findings, since who changes records could choose one.
    Raises OSError.
    """
    expected = list(anchors)
    reports = []
    for chain, files in chains_in(folder).items():
        of_chain = [anchor for anchor in expected if anchor.chain == chain]
        reports.append(_chain_report(folder, chain, files, key, of_chain, is_partial))
    known = {report.chain for report in reports}
    for anchor in expected:
        if anchor.chain not in known:
            gone = Finding(folder, 0, f"chain {anchor.chain} is gone: it had a record {anchor.seq}")
            reports.append(ChainReport(anchor.chain, findings=[gone]))
            known.add(anchor.chain)
    return reports


def records_in(folder: Path) -> Iterator[dict[str, Any]]:
    """Every record of a folder that can be read, chain by chain. Raises OSError."""
    for files in chains_in(folder).values():
        for _, path in files:
            for line in _lines(path):
                try:
                    yield read_line(line, None)[0]
                except BadLine:
                    values = _unchecked(line)
                    if values is not None:
                        yield values


def _chain_report(
    folder: Path,
    chain: str,
    files: list[tuple[int, Path]],
    key: SecretBytes | None,
    anchors: list[Anchor],
    is_partial: bool,
) -> ChainReport:
    report = ChainReport(chain, files=len(files))
    found = report.findings
    expected = {anchor.seq: anchor for anchor in anchors}
    link: Link | None = Link() if not is_partial else None
    number = 0 if not is_partial else files[0][0] - 1
    has_key = True
    for own_number, path in files:
        if own_number != number + 1:
            found.append(Finding(path, 0, f"file {number + 1} of chain {chain} is missing"))
        number = own_number
        line_number = 0
        for line_number, line in enumerate(_lines(path), 1):
            where = (path, line_number)
            if line_number == 1:
                has_key = key is not None or (_unchecked(line) or {}).get("algorithm") != HMAC_SHA256
            values = _record(line, key, where, found) if has_key else _unchecked(line)
            if values is None:
                link = None
                continue
            report.records += 1
            _compare(values, chain, link, where, found)
            digest = str(values.get("hash") or "")
            link = Link(values["seq"], digest)
            anchor = expected.pop(link.seq, None)
            if anchor is not None and anchor.hash != link.hash:
                found.append(Finding(*where, f"record {link.seq} is another than the anchor's"))
            if line_number == 1 and values.get("kind") != "open":
                found.append(Finding(*where, "the file does not begin with the record that opens it"))
            _look_at_told(values, key, where, found)
        if not line_number:
            found.append(Finding(path, 0, "the file has no record"))
    report.end = link or Link()
    last = files[-1][1]
    for anchor in expected.values():
        if not (is_partial and link is not None and anchor.seq < link.seq):
            found.append(Finding(last, 0, f"record {anchor.seq} of the anchor is not there"))
    _compare_head(folder, chain, key, report, last)
    return report


def _record(
    line: bytes, key: SecretBytes | None, where: tuple[Path, int], found: list[Finding]
) -> dict[str, Any] | None:
    """What a line says, with its hash; None where nothing can be read of it. What is wrong is a finding."""
    unchecked = _unchecked(line)
    if not line.endswith(b"\n"):
        found.append(Finding(*where, "the file ends within a record"))
    try:
        values, digest = read_line(line, key)
    except BadLine as error:
        found.append(Finding(*where, str(error)))
        return unchecked
    return {**values, "hash": digest}


def _unchecked(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except ValueError:
        return None
    is_record = type(values) is dict and type(values.get("seq")) is int and type(values.get("prev")) is str
    return values if is_record else None


def _compare(
    values: dict[str, Any], chain: str, link: Link | None, where: tuple[Path, int], found: list[Finding]
) -> None:
    if values.get("chain") != chain:
        found.append(Finding(*where, f"the record is of chain {values.get('chain')}"))
    if link is None:
        return  # it begins here, or what was before cannot be read
    if values["seq"] != link.seq + 1:
        what = "removed or moved" if values["seq"] > link.seq + 1 else "added, doubled or moved"
        found.append(Finding(*where, f"record {values['seq']} follows record {link.seq}: records were {what}"))
    elif values["prev"] != link.hash:
        before = "no record before it" if link.hash == FIRST else f"record {link.seq}"
        found.append(Finding(*where, f"record {values['seq']} was not written behind {before}"))


def _look_at_told(
    values: dict[str, Any], key: SecretBytes | None, where: tuple[Path, int], found: list[Finding]
) -> None:
    """What the writer has told of what is not there."""
    if values.get("kind") == "open":
        algorithm = values.get("algorithm")
        if key is not None and algorithm != HMAC_SHA256:
            found.append(Finding(*where, f"the file is hashed with {algorithm}, without the key"))
        elif key is None and algorithm == HMAC_SHA256:
            found.append(Finding(*where, "the file is hashed with a key: give --key-file"))
        if values.get("missing"):
            found.append(Finding(*where, f"{values['missing']} records before this one were lost or removed"))
        if values.get("head"):
            found.append(Finding(*where, f"the head was {values['head']} when this file began: records may be missing"))
        if values.get("cut_bytes"):
            found.append(Finding(*where, f"a crash has cut a record off: {values['cut_bytes']} bytes"))
    elif values.get("kind") == "gap":
        found.append(Finding(*where, f"{values.get('lost')} records could not be written here"))


def _compare_head(folder: Path, chain: str, key: SecretBytes | None, report: ChainReport, last: Path) -> None:
    path = head_path(folder, chain)
    if key is None and any("--key-file" in each.message for each in report.findings):
        return  # it cannot be read without
    try:
        head = read_head(folder, chain, key)
    except BadLine as error:
        report.findings.append(Finding(path, 0, str(error)))
        return
    if head is None:
        report.findings.append(Finding(path, 0, "there is no head: records that are missing at the end would not show"))
    elif head.seq > report.end.seq:
        lacking = head.seq - report.end.seq
        report.findings.append(Finding(last, 0, f"the last {lacking} records are missing: the head says {head.seq}"))
    elif head.seq == report.end.seq and head.hash != report.end.hash:
        report.findings.append(Finding(path, 0, f"record {head.seq} is another than the head's"))


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from file
