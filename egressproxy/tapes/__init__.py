"""Tapes: the network of a program in files. A gateway records what its clients ask and get, and plays it back later.

Python interface. `record` and `replay` return a `Run`, which has what a configuration needs besides its own:

    run = egressproxy.tapes.record("tapes/")               # or replay("tapes/", strict=True)
    folder = run.write(["agents/egress"])                  # manifests for these Gateways, and the filter's file
    ...                                                    # serve this folder, with others; clients trust run.ca_pem
    report = run.finish()                                  # when the gateway has ended; see report.lines()

In place of `write`, an EgressPolicy of the Gateway may have `run.extension` in `spec.extensions` and
`run.intercept(name)` in `spec.intercept`, with the Secret `run.secret(namespace, name)` beside it and each of
`run.files` in the folder of its manifest. One process has to serve (`--workers 1`).

A gateway without tapes imports nothing of this package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from socket import AF_INET, socket
from tempfile import TemporaryDirectory
from time import time
from typing import Any, Final

import yaml

from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.tapes.matching import Rules
from egressproxy.tapes.tape import TapeError, read_folder

__all__ = ["Report", "Run", "TapeError", "record", "replay"]

#: Behind most filters of requests and answers, before a Cache, which has to be the last one.
PRIORITY: Final = 999
#: What the manifest's folder needs: a Python filter is a file beside its manifest.
_FILTER_FILE: Final = "egressproxy_tape.py"
_FILTER: Final = "from egressproxy.tapes.filter import TapeConfig as Config, TapeFilter\n\nfilter_class = TapeFilter\n"
_NAME: Final = "egressproxy-tapes"
#: The CA of a run ends with it; this is for one that is forgotten.
_CA_DAYS: Final = 7


@dataclass(slots=True)
class Report:
    """What a run has done. `missing`: requests that no tape answers, each with the nearest recording. `unplayed`:
    recordings without a request. `unrecorded`: what could not be recorded or played, and why. `has_failed`:
    tapes could not be written.
    """

    is_strict: bool = False
    recorded: int = 0
    played: int = 0
    files: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unplayed: list[str] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    has_failed: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all tapes are written, and a strict run has found and played everything."""
        return not (self.has_failed or (self.is_strict and (self.missing or self.unplayed)))

    def lines(self) -> list[str]:
        """The report for people."""
        told = []
        if self.recorded:
            told.append(f"{_counted(self.recorded, 'exchange')} recorded in {', '.join(sorted(self.files))}")
        if self.played or self.is_strict:
            told.append(f"{_counted(self.played, 'exchange')} played from tapes")
        for title, entries in (
            ("not in the tapes", self.missing),
            ("not played", self.unplayed if self.is_strict else []),
            ("not on tape", self.unrecorded),
        ):
            told += [f"{title}: {each}" for each in entries[:_SHOWN]]
            if len(entries) > _SHOWN:
                told.append(f"{title}: {len(entries) - _SHOWN} more")
        return told or ["no exchange went through the gateway: the command reaches local servers directly (--no-proxy)"]


#: Entries of each kind in the lines of a report.
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Run:
    """One run with tapes: the settings of its filter, and its CA. `record_to` and `replay_from` are folders."""

    record_to: Path | None
    replay_from: Path | None
    strict: bool
    player_port: int
    ignore_body: tuple[str, ...]
    ignore_query: tuple[str, ...]
    ca_pem: str
    _ca_key: str = field(repr=False)
    _work: TemporaryDirectory[str] = field(repr=False)

    @property
    def extension(self) -> dict[str, Any]:
        """The entry for `spec.extensions` of an EgressPolicy."""
        config = {
            "recordTo": str(self.record_to.absolute()) if self.record_to is not None else "",
            "replayFrom": str(self.replay_from.absolute()) if self.replay_from is not None else "",
            "strict": self.strict,
            "playerPort": self.player_port,
            "ignoreBody": list(self.ignore_body),
            "ignoreQuery": list(self.ignore_query),
            "report": str(self._report),
        }
        return {
            "name": "tape",
            "type": "egressproxy.io/Python:v1",
            "phase": "request-headers",
            "priority": PRIORITY,
            "timeout": "24h",  # of a stream that the client ends
            "config": {"path": _FILTER_FILE, "config": config},
        }

    @property
    def files(self) -> dict[str, str]:
        """The files that have to be in the folder of the manifest, by name."""
        return {_FILTER_FILE: _FILTER}

    def intercept(self, name: str = _NAME) -> dict[str, Any]:
        """`spec.intercept` of an EgressPolicy, with the Secret `name`: tunnels to all hosts are opened."""
        return {"hostnames": ["*"], "caCertificateRef": {"name": name}}

    def secret(self, namespace: str, name: str = _NAME) -> dict[str, Any]:
        """The Secret with the CA of this run."""
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace},
            "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": self.ca_pem, "tls.key": self._ca_key},
        }

    def manifests(self, gateways: Sequence[str]) -> list[dict[str, Any]]:
        """A policy for all of these Gateways ("namespace/name") of each namespace, and its Secret."""
        made = []
        for namespace in dict.fromkeys(each.partition("/")[0] for each in gateways):
            names = [each.partition("/")[2] for each in gateways if each.partition("/")[0] == namespace]
            target = {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
            targets = [{**target, "name": name} for name in names]
            spec = {
                "targetRefs": targets,
                "intercept": self.intercept(),
                "extensions": [self.extension],
            }
            meta = {"name": _NAME, "namespace": namespace}
            if self.player_port:
                made += self._player(meta, targets)
            policy = {"apiVersion": "egressproxy.io/v1alpha1", "kind": "EgressPolicy", "metadata": meta, "spec": spec}
            made += [policy, self.secret(namespace)]
        return made

    def _player(self, meta: dict[str, str], gateways: list[dict[str, str]]) -> list[dict[str, Any]]:
        """The only backend of a Gateway that plays streams with their rhythm (`tapes.player`), and the route to it."""
        destination = {
            "type": "Ip",
            "ip": {"address": "127.0.0.1"},
            "ports": [{"number": self.player_port, "protocol": "HTTP11", "tls": {"mode": "None"}}],
        }
        ref = {"group": "egressproxy.io", "kind": "Backend", "name": _NAME}
        route = {"parentRefs": [{"name": each["name"]} for each in gateways], "rules": [{"backendRefs": [ref]}]}
        version = "egressproxy.io/v1alpha1"
        return [
            {"apiVersion": version, "kind": "Backend", "metadata": meta, "spec": {"destination": destination}},
            {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": meta, "spec": route},
        ]

    def write(self, gateways: Sequence[str], others: Sequence[dict[str, Any]] = ()) -> Path:
        """Write `manifests` with `others`, and `files`; returns their folder, which exists until `finish`."""
        folder = Path(self._work.name) / "config"  # readable by this user alone
        folder.mkdir()
        for name, text in self.files.items():
            (folder / name).write_text(text, "utf-8")
        manifests = yaml.safe_dump_all([*others, *self.manifests(gateways)], sort_keys=False)
        (folder / "tapes.yaml").write_text(manifests, "utf-8")
        return folder

    @property
    def _report(self) -> Path:
        return Path(self._work.name) / "report.json"

    def finish(self) -> Report:
        """What the run has done. Call it when the gateway has ended."""
        try:
            return Report(**json.loads(self._report.read_text("utf-8")))
        except FileNotFoundError:  # of a gateway without a request
            unplayed = []
            if self.replay_from is not None:
                unplayed = [each.title for each in read_folder(self.replay_from)]
            return Report(is_strict=self.strict, unplayed=unplayed)
        finally:
            self._work.cleanup()


def write_report(path: Path, report: Report) -> None:
    """Of the filter, for `Run.finish`."""
    path.write_text(json.dumps(asdict(report)), "utf-8")


def record(folder: str | Path) -> Run:
    """Record into this folder, a file for each host; files of hosts that are recorded are replaced. Raises
    TapeError.
    """
    return _run(Path(folder), None)


def replay(
    folder: str | Path,
    *,
    strict: bool = False,
    record_to: str | Path | None = None,
    rhythm: bool = False,
    ignore_body: Sequence[str] = (),
    ignore_query: Sequence[str] = (),
) -> Run:
    """Answer from the tapes of this folder.

    `strict`: nothing else is answered. Otherwise what is missing goes to the network, and is added to the tapes in
    `record_to`, if given. `rhythm`, with `strict` and for a Gateway without other routes: streams
    take as long as they took. `ignore_body` are JSON paths (`$.a.b`,
    `$.a[*].b`, `$..b`), `ignore_query` names of parameters, in which requests may differ. Raises TapeError.
    """
    Rules.of(ignore_body, ignore_query)
    found = read_folder(Path(folder))
    if not found and strict:
        raise TapeError(f"{folder}: there is no tape to replay; record one with --record")
    target = Path(record_to) if record_to is not None else None
    if rhythm and not strict:
        raise TapeError("rhythm is for a strict replay, which asks no other backend: add --strict")
    if strict and target is not None:
        raise TapeError("a strict replay records nothing: leave out one of the two")
    return _run(
        target, Path(folder), strict=strict, player_port=_free_port() if rhythm else 0, ignore_body=tuple(ignore_body),
        ignore_query=tuple(ignore_query),
    )  # fmt: skip


def _run(
    record_to: Path | None,
    replay_from: Path | None,
    *,
    strict: bool = False,
    player_port: int = 0,
    ignore_body: tuple[str, ...] = (),
    ignore_query: tuple[str, ...] = (),
) -> Run:
    if record_to is not None:
        try:
            record_to.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TapeError(f"{error.filename}: {error.strerror}") from None
        if not os.access(record_to, os.W_OK):
            raise TapeError(f"{record_to}: tapes cannot be written there")
    ca_pem, key = new_ca("egressproxy tapes", time(), _CA_DAYS, path_length=0)
    work = TemporaryDirectory(prefix="egressproxy-tapes-")
    return Run(
        record_to, replay_from, strict, player_port, ignore_body, ignore_query, ca_pem, key.reveal().decode(), work
    )  # fmt: skip


def _free_port() -> int:
    with socket(AF_INET) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
