"""`egressproxy convert`: another proxy's access rules as EgressPolicies."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import click

from egressproxy.cli.options import together
from egressproxy.operators.convert.manifests import Converted, ConvertError
from egressproxy.operators.convert.smokescreen import convert_smokescreen
from egressproxy.operators.convert.squid import convert_squid


def _namespace(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", value):
        raise click.BadParameter(f"{value!r} is no namespace: lower-case letters, digits and -, 63 at most")
    return value


_options = together(
    click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    click.option(
        "--namespace", metavar="NS", default="egress", show_default=True, callback=_namespace,
        help="The namespace of the manifests.",
    ),
    click.option("--strict", is_flag=True, help="Exit with 1 if a rule, or a part of one, was left out."),
)  # fmt: skip


@click.group("convert")
def command() -> None:
    """Print the access rules of another proxy as manifests.

    They never allow more than the source. A comment at each entry names its source. What could not be carried over is
    told at the end and on standard error, by file and line.

    \b
    Examples:
      egressproxy convert squid /etc/squid/squid.conf > policies.yaml
      egressproxy convert smokescreen acl.yaml --strict > policies.yaml
    """


@command.command("squid", short_help="Convert a squid.conf.")
@_options
def squid(file: Path, namespace: str, *, strict: bool) -> None:
    """Convert the `acl` and `http_access` rules of a squid.conf, with the files that it includes and names.

    \b
    Examples:
      egressproxy convert squid /etc/squid/squid.conf > policies.yaml

    Exit status: 0 done, 1 FILE cannot be read, or with --strict something was left out, 2 wrong usage.
    """
    _convert(file, namespace, strict, convert_squid)


@command.command("smokescreen", short_help="Convert an ACL of Smokescreen.")
@_options
def smokescreen(file: Path, namespace: str, *, strict: bool) -> None:
    """Convert an ACL of Smokescreen (version v1). A service becomes a service account of --namespace.

    \b
    Examples:
      egressproxy convert smokescreen acl.yaml > policies.yaml

    Exit status: 0 done, 1 FILE cannot be read, or with --strict something was left out, 2 wrong usage.
    """
    _convert(file, namespace, strict, convert_smokescreen)


def _convert(file: Path, namespace: str, strict: bool, convert: Callable[[Path], Converted]) -> None:
    try:
        found = convert(file)
    except ConvertError as error:
        raise click.ClickException(str(error)) from None
    except RecursionError:
        raise click.ClickException(f"{file}: an ACL refers to itself") from None
    click.echo(found.written(namespace), nl=False)
    for line in found.told():
        click.echo(f"not carried over: {line}", err=True)
    if strict and any(each.is_rule for each in found.left_out):
        sys.exit(1)
