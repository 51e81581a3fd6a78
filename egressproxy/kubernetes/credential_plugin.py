"""CredentialPlugin: runs the credential program of a kubeconfig (`exec`) on demand.

It runs again when its credentials expire, or an API server refuses them. A program that does not end is killed with its
children, and not run again for a while. Its standard error, which may have secrets, is discarded.
Source: Kubernetes, "Authenticating", client-go credential plugins.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from egressproxy.net.program import run_program

#: The time limit in seconds.
ANSWER_S: Final = 30.0
#: The most bytes of output.
MAX_BYTES: Final = 1 << 20
#: Seconds after a run in which refused credentials cause no new run; and the pauses after failed runs.
REFUSED_S: Final = 10.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


class PluginFailed(Exception):
    """The plugin failed; the message is a sentence that names the program."""


class CredentialPlugin:
    """The plugin of one user of a kubeconfig; `status` gives the credentials."""

    def __init__(self, spec: Mapping[str, Any], folder: str) -> None:
        """`spec` is `exec` of a kubeconfig in `folder`. Raises PluginFailed."""
        command, self._version = spec.get("command"), spec.get("apiVersion")
        args, variables = spec.get("args") or [], spec.get("env") or []
        if not isinstance(command, str) or not isinstance(self._version, str):
            raise PluginFailed("exec has to have a command and an apiVersion")
        if not isinstance(args, list) or not all(isinstance(each, str) for each in args):
            raise PluginFailed(f"exec {command}: args is no list of texts")
        self._command = os.path.join(folder, command) if os.sep in command else command
        self._args = args
        try:
            more = {each["name"]: each["value"] for each in variables}
        except (KeyError, TypeError):
            raise PluginFailed(f"exec {command}: env is no list of name and value") from None
        asked = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False}}
        self._environment = {**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
        self._status: dict[str, Any] = {}
        self._expires: datetime | None = None
        self._ran_at = -REFUSED_S  # start of the last run
        self._failure = ""  # of the last run
        self._pause_s = 0.0
        self._ended_at = 0.0

    async def status(self, *, is_refused: bool = False) -> Mapping[str, Any]:
        """The status of its ExecCredential: of the last run while valid. `is_refused`: an API server has refused it.
        Raises PluginFailed.
        """
        now = time.monotonic()
        if self._failure:
            if now - self._ended_at < self._pause_s:
                raise PluginFailed(self._failure)
        elif self._status and not self._has_expired() and not (is_refused and now - self._ran_at > REFUSED_S):
            return self._status
        self._ran_at = now
        try:
            self._status = await self._answer()
            self._failure, self._pause_s = "", 0.0
        except PluginFailed as error:
            self._failure = str(error)
            self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            raise
        finally:
            self._ended_at = time.monotonic()
        return self._status

    def _has_expired(self) -> bool:
        return self._expires is not None and self._expires <= datetime.now(UTC)

    async def _answer(self) -> dict[str, Any]:
        """Raises PluginFailed."""
        output = await self._run()
        try:
            found = json.loads(output)
            if found["apiVersion"] != self._version or found["kind"] != "ExecCredential":
                raise ValueError("another kind")
            status = found["status"]
            texts = [status.get(each) for each in ("token", "clientCertificateData", "clientKeyData")]
            if not all(isinstance(each, str | None) for each in texts):
                raise ValueError("no text")
            expires = status.get("expirationTimestamp")
            expiry = datetime.fromisoformat(expires) if expires else None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PluginFailed(f"{self} has printed no ExecCredential of {self._version}") from None
        if not texts[0] and not (texts[1] and texts[2]):
            raise PluginFailed(f"{self} gives neither a token nor a certificate with its key")
        self._expires = expiry.replace(tzinfo=expiry.tzinfo or UTC) if expiry is not None else None
        return dict(status)

    async def _run(self) -> bytes:
        """The program's output. Raises PluginFailed."""
        try:
            status, output = await run_program((self._command, *self._args), self._environment, ANSWER_S, MAX_BYTES)
        except TimeoutError:
            raise PluginFailed(f"{self} has not ended within {ANSWER_S:g} s, and was killed") from None
        except OverflowError:
            raise PluginFailed(f"{self} printed more than {MAX_BYTES} bytes, and was killed") from None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise PluginFailed(f"{self} cannot be started ({why})") from None
        if status != 0:
            raise PluginFailed(f"{self} ended with status {status}")
        return output

    def __str__(self) -> str:
        return f"the credential plugin {self._command}"
