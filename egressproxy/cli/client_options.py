"""Options of `env` and `run -- CMD`: what clients are told besides where the gateway is."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from egressproxy.cli.client_settings import LOCAL, PROVIDERS, Login
from egressproxy.cli.options import Decorator, together

#: Longer than any token: the file is another.
_MAX_TOKEN_BYTES: Final = 16_384


def _base_urls(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, equals, url = value.partition("=")
        if not equals or name not in PROVIDERS:
            raise click.BadParameter(f"{value!r} is not NAME=URL with a NAME of {', '.join(PROVIDERS)}")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise click.BadParameter(f"{url!r} is not a URL: give one such as http://127.0.0.1:8080/{name}")
        found[name] = url
    return found


def _hosts(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in value.split(",") if each.strip())


def _written(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}") from None


def _token(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> str:
    if path is None:
        return ""
    written = _written(path).strip()
    if not 0 < len(written) <= _MAX_TOKEN_BYTES or not written.isascii() or len(written.split()) != 1:
        raise click.BadParameter(f"{path} has no token: one word of ASCII, {_MAX_TOKEN_BYTES:,} bytes at most")
    return written.decode("ascii")


def _user(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    if ":" in name or (name and not name.isprintable()):
        raise click.BadParameter(f"{name!r} is no user: no name has a colon or control characters (RFC 7617)")
    return name


def _password(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> str:
    """The file, without the end of its line. A password may have blanks."""
    if path is None:
        return ""
    written = _written(path).removesuffix(b"\n").removesuffix(b"\r")
    password = written.decode(errors="replace")
    if "\ufffd" in password or not password.isprintable() or not 0 < len(written) <= _MAX_TOKEN_BYTES:
        raise click.BadParameter(f"{path} has no password: one line of UTF-8, {_MAX_TOKEN_BYTES:,} bytes at most")
    return password


def login_of(token: str, user: str, password: str) -> Login:
    """What the options of these names say together. Raises click.UsageError."""
    if bool(user) != bool(password):
        raise click.UsageError("--user and --password-file go together; a token has --token-file, and no user")
    if token and user:
        raise click.UsageError("--token-file and --user both name the client: give one of them")
    return Login("token", token) if token else Login(user, password)


#: What CLIENT_OPTIONS names.
client_options: Decorator = together(
    click.option(
        "--no-proxy", metavar="HOSTS", default=",".join(LOCAL), show_default=True, callback=_hosts,
        help="Hosts that clients reach without the gateway, separated by commas.",
    ),
    click.option(
        "--token-file", "token", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", callback=_token,
        help="A file with the token of clients (`identity.token`): the password in the URL of the proxy.",
    ),
    click.option(
        "--user", default="", metavar="NAME", callback=_user,
        help="The user name of clients (`identity.basic`), with --password-file.",
    ),
    click.option(
        "--password-file", "password", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
        callback=_password, help="A file with the user's password in one line: the password in the URL of the proxy.",
    ),
    click.option(
        "--base-url", "base_urls", multiple=True, metavar="NAME=URL", callback=_base_urls,
        help=f"The base URL of a provider on a reverse listener, for clients that know no proxy; NAME is one of"
        f" {', '.join(PROVIDERS)}. May be given again.",
    ),
    click.option(
        "--ca", type=click.Path(exists=True, path_type=Path), metavar="PATH",
        help="The CA for interception, which clients have to trust: a PEM file, or a folder with ca.crt.",
    ),
)  # fmt: skip
#: Their names as parameters.
CLIENT_OPTIONS: Final = ("no_proxy", "token", "user", "password", "base_urls", "ca")
