"""Options for Secrets from files and from the environment, shared by all verbs that read manifests."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from egressproxy.model.secret import SecretBytes, SecretSource

_TARGET: Final = re.compile(r"(?:(?P<namespace>[^/:=]+)/)?(?P<name>[^/:=]+)(?::(?P<key>[^/:=]+))?")
#: The name of a cluster-scoped object, with the colons that those of signers have (Kubernetes: `signer:x:name`).
_BUNDLE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.:]{0,251}[a-z0-9])?")
_FORM: Final = "[NAMESPACE/]NAME[:KEY]=PATH"
_FORM_ENV: Final = "[NAMESPACE/]NAME:KEY=VARIABLE"
_FORM_BUNDLE: Final = "NAME=PATH"


def secret_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--secret`, `--secrets`, `--secret-env` and `--trust-bundle`; the command gets their values as `sources`."""

    @click.option(
        "--secret", "secret", multiple=True, metavar=_FORM,
        help="A Secret: a folder with a file for each key, such as a mounted one, or one file; may be given again.",
    )  # fmt: skip
    @click.option(
        "--secrets", "secrets", multiple=True, type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR", help="A folder of Secrets as files: DIR/NAME/KEY, or DIR/NAMESPACE/NAME/KEY.",
    )  # fmt: skip
    @click.option(
        "--secret-env", "secret_env", multiple=True, metavar=_FORM_ENV,
        help="One key of a Secret, in an environment variable that is read at the start; may be given again.",
    )  # fmt: skip
    @click.option(
        "--trust-bundle", "trust_bundle", multiple=True, metavar=_FORM_BUNDLE,
        help="A ClusterTrustBundle: the CA certificates of a PEM file, or of those in a folder; may be given again.",
    )  # fmt: skip
    @wraps(command)
    def with_sources(
        *args: Any,
        secret: tuple[str, ...],
        secrets: tuple[Path, ...],
        secret_env: tuple[str, ...],
        trust_bundle: tuple[str, ...],
        **options: Any,
    ) -> Any:
        sources = secret_sources(secret, secrets, secret_env) + _trust_bundles(trust_bundle)
        return command(*args, sources=sources, **options)

    return with_sources


def secret_sources(
    secret: Sequence[str], secrets: Sequence[Path], secret_env: Sequence[str]
) -> tuple[SecretSource, ...]:
    """The sources that these options name. Their variables leave the environment. Raises click.BadParameter."""
    made = [SecretSource(path=folder) for folder in secrets]
    for written in secret:
        namespace, name, key, path = _parts(written, "--secret", _FORM)
        if not Path(path).exists():
            raise click.BadParameter(f"{path}: there is no such file or folder", param_hint="--secret")
        made.append(SecretSource(namespace, name, key, Path(path)))
    for written in secret_env:
        namespace, name, key, variable = _parts(written, "--secret-env", _FORM_ENV)
        if not key:
            raise click.BadParameter(f"{written}: write {_FORM_ENV}", param_hint="--secret-env")
        value = os.environb.get(os.fsencode(variable))
        if not value:
            problem = "is not set" if value is None else "is empty"
            raise click.BadParameter(f"the environment variable {variable} {problem}", param_hint="--secret-env")
        made.append(SecretSource(namespace, name, key, variable=variable, value=SecretBytes(value)))
    for source in made:
        if source.variable:
            _forget(source.variable)
    return tuple(made)


def _trust_bundles(written: Sequence[str]) -> tuple[SecretSource, ...]:
    """Raises click.BadParameter."""
    made = []
    for each in written:
        name, _, path = each.partition("=")
        if not _BUNDLE.fullmatch(name) or not path:
            raise click.BadParameter(f"{each}: write {_FORM_BUNDLE}", param_hint="--trust-bundle")
        if not Path(path).exists():
            raise click.BadParameter(f"{path}: there is no such file or folder", param_hint="--trust-bundle")
        made.append(SecretSource("", name, path=Path(path), is_trust_bundle=True))
    return tuple(made)


def _forget(variable: str) -> None:
    """Remove it from the environment, and overwrite it in the memory that the kernel shows as /proc/PID/environ
    (proc(5)). Without a C library that ctypes can call, that copy stays.
    """
    with suppress(OSError, AttributeError, TypeError):
        import ctypes

        getenv = ctypes.CDLL(None).getenv
        getenv.argtypes, getenv.restype = (ctypes.c_char_p,), ctypes.c_void_p
        value = getenv(os.fsencode(variable))
        if value:
            ctypes.memset(value, 0, len(ctypes.string_at(value)))
    os.environ.pop(variable, None)


def _parts(written: str, option: str, form: str) -> tuple[str, str, str, str]:
    """Namespace, name, key ("" if none is given), and the text after "=". Raises click.BadParameter."""
    target, sign, rest = written.partition("=")
    match = _TARGET.fullmatch(target)
    if match is None or not sign or not rest:
        raise click.BadParameter(f"{target}: write {form}", param_hint=option)
    return match["namespace"] or "default", match["name"], match["key"] or "", rest
