"""Tapes: the network of a program in files. A gateway records what its clients ask and get, and plays it back later.

Python interface. `record` and `replay` return a `Run`, which has what a configuration needs besides its own:

    run = egressproxy.tapes.record("tapes/")               # or replay("tapes/", strict=True)
    folder = run.write(["agents/egress"])                  # manifests for these Gateways, and the filter's file
    ...                                                    # serve this folder, with others; clients trust run.ca_pem
    report = run.finish()                                  # when the gateway has ended; see report.lines()

One process has to serve (`--workers 1`). A gateway without tapes imports nothing of this package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time
from typing import Any, Final

import yaml

from egressproxy.config.manifests import Manifest, manifest, origin, policy
from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.net.file_lock import try_lock
from egressproxy.net.listening import reserved_port
from egressproxy.tapes.matching import Rules
from egressproxy.tapes.tape import TapeError, counted, read_folder

__all__ = ["Report", "Run", "TapeError", "record", "replay"]

#: Behind most filters of requests and answers, before a Cache, which has to be the last one.
PRIORITY: Final = 999
#: What the manifest's folder needs: a Python filter is a file beside its manifest.
_FILTER_FILE: Final = "egressproxy_tape.py"
_FILTER: Final = "from egressproxy.tapes.filter import TapeConfig as Config, TapeFilter\n\nfilter_class = TapeFilter\n"
_NAME: Final = "egressproxy-tapes"
#: The CA of a run ends with it; this is for one that is forgotten.
_CA_DAYS: Final = 7
#: Entries of each kind in the lines of a report.
_SHOWN: Final = 10


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
            told.append(f"{counted(self.recorded, 'exchange')} recorded in {', '.join(sorted(self.files))}")
        if self.played or self.is_strict:
            told.append(f"{counted(self.played, 'exchange')} played from tapes")
        for title, entries in (
            ("not in the tapes", self.missing),
            ("not played", self.unplayed if self.is_strict else []),
            ("not on tape", self.unrecorded),
        ):
            told += [f"{title}: {each}" for each in entries[:_SHOWN]]
            if len(entries) > _SHOWN:
                told.append(f"{title}: {len(entries) - _SHOWN} more")
        return told or ["no exchange went through the gateway: the command reaches local servers directly (--no-proxy)"]


def record(folder: str | Path) -> Run:
    """Record into this folder, a file for each host; files of hosts that are recorded are replaced. Raises
    TapeError.
    """
    return Run(Path(folder), None)


def replay(
    folder: str | Path,
    *,
    strict: bool = False,
    record_to: str | Path | None = None,
    rhythm: bool = False,
    ignore_body: Iterable[str] = (),
    ignore_query: Iterable[str] = (),
) -> Run:
    """Answer from the tapes of this folder.

    `strict`: nothing else is answered. Otherwise what is missing goes to the network, and is added to the tapes in
    `record_to`, if given. `rhythm`, with `strict` and for a Gateway without other routes: streams
    take as long as they took. `ignore_body` are JSON paths (`$.a.b`,
    `$.a[*].b`, `$..b`), `ignore_query` names of parameters, in which requests may differ. Raises TapeError.
    """
    if rhythm and not strict:
        raise TapeError("rhythm is for a strict replay, which asks no other backend: add --strict")
    if strict and record_to is not None:
        raise TapeError("--strict records nothing: leave out --record, or --strict")
    ignored = {"ignore_body": list(ignore_body), "ignore_query": list(ignore_query)}
    Rules.of(*ignored.values())
    if not read_folder(Path(folder)) and strict:
        raise TapeError(f"{folder}: there is no tape to replay; record one with --record")
    target = None if record_to is None else Path(record_to)
    return Run(target, Path(folder), rhythm=rhythm, strict=strict, **ignored)


class Run:
    """One run with tapes: its filter, and `ca_pem`, which opens the tunnels."""

    def __init__(
        self, record_to: Path | None, replay_from: Path | None, *, rhythm: bool = False, **settings: Any
    ) -> None:
        """`settings`: others of the filter. Raises TapeError."""
        self._lock = -1 if record_to is None else _locked(record_to)
        self._replay_from = replay_from
        self.ca_pem, self._ca_key = new_ca("egressproxy tapes", time(), _CA_DAYS, path_length=0)
        self._work = TemporaryDirectory(prefix="egressproxy-tapes-")  # readable by this user alone
        self._report = Path(self._work.name) / "report.json"
        folders = {"record_to": record_to, "replay_from": replay_from, "report": self._report}
        self._settings: dict[str, Any] = {
            name: "" if path is None else str(path.absolute()) for name, path in folders.items()
        }
        self._settings |= settings
        self._player_port = reserved_port() if rhythm else None
        if self._player_port is not None:
            self._settings["player_port"] = self._player_port.getsockname()[1]

    @property
    def extension(self) -> dict[str, Any]:
        """The entry for `spec.extensions` of an EgressPolicy."""
        return {
            "name": "tape",
            "type": "egressproxy.io/Python:v1",
            "phase": "request-headers",
            "priority": PRIORITY,
            "timeout": "24h",  # of a stream that the client ends
            "config": {"path": _FILTER_FILE, "config": self._settings},
        }

    def write(self, gateways: Iterable[str], others: Iterable[Manifest] = ()) -> Path:
        """Write `others`, a policy for these Gateways ("namespace/name") in each namespace, and the filter; returns
        their folder, which exists until `finish`.
        """
        folder = Path(self._work.name) / "config"
        folder.mkdir()
        (folder / _FILTER_FILE).write_text(_FILTER, "utf-8")
        names: dict[str, list[str]] = {}
        for each in gateways:
            namespace, _, name = each.partition("/")
            names.setdefault(namespace, []).append(name)
        made, pair = [*others], {"tls.crt": self.ca_pem, "tls.key": self._ca_key.reveal().decode()}
        intercept = {"hostnames": ["*"], "caCertificateRef": {"name": _NAME}}
        for namespace, of in names.items():
            place = f"{namespace}/{_NAME}"
            made.append(manifest("Secret", place, "v1", type="kubernetes.io/tls", stringData=pair))
            made.append(policy(place, of, intercept=intercept, extensions=[self.extension]))
            if port := self._settings.get("player_port"):  # the only backend: see `tapes.player`
                made += origin(place, of, "127.0.0.1", port)
        (folder / "tapes.yaml").write_text(yaml.safe_dump_all(made, sort_keys=False), "utf-8")
        return folder

    def finish(self) -> Report:
        """What the run has done. Call it when the gateway has ended."""
        try:
            return Report(**json.loads(self._report.read_text("utf-8")))
        except FileNotFoundError:  # of a gateway that has not served
            found = [] if self._replay_from is None else read_folder(self._replay_from)
            return Report(bool(self._settings.get("strict")), unplayed=[each.title for each in found])
        finally:
            self._work.cleanup()
            if self._player_port is not None:
                self._player_port.close()
            if self._lock >= 0:
                os.close(self._lock)


def _locked(folder: Path) -> int:
    """A descriptor of this folder, which is made, and which no other run has. Raises TapeError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if try_lock(descriptor) and os.access(folder, os.W_OK):
            return descriptor
        os.close(descriptor)
    except OSError as error:
        raise TapeError(f"{error.filename or folder}: {error.strerror}") from None
    raise TapeError(f"{folder}: tapes cannot be written there, or another run records there now")
