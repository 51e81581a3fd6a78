"""`egressproxy rbac`: the RBAC that a gateway with `--source kubernetes` needs, and nothing beyond."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from egressproxy.cli.options import config_option
from egressproxy.cli.problems import show_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

    from egressproxy.config.reading.load import ResourceSet
    from egressproxy.kubernetes.access import Rule

_WITHOUT_CONFIG = """\
# No Secrets, and of the ConfigMaps the catalogue alone: which ones a configuration refers to is not known here. To have
# them by name, give the manifests: egressproxy rbac --config PATH. Or use a label: egressproxy rbac --secret-selector
# LABELS, which permits more.
"""
_WITH_CONFIG = """\
# Secrets and ConfigMaps by name, as the given manifests refer to them: print this again when they refer to others.
"""
_WITH_SELECTOR = """\
# RBAC cannot be limited by labels: the gateway only asks for Secrets and ConfigMaps with --secret-selector, but may
# read every Secret and ConfigMap {where}. To permit less, give the manifests with --config instead.
"""


def _full_name(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[str, str] | None:
    """`NS/NAME` as two texts. Raises click.BadParameter."""
    if given is None:
        return None
    namespace, _, name = given.partition("/")
    if not namespace or not name or "/" in name:
        raise click.BadParameter(f"{given!r} has to be NAMESPACE/NAME", ctx, param)
    return namespace, name


@click.command("rbac")
@config_option(
    "Manifests that the gateway will serve: rights to Secrets and ConfigMaps by name, to other kinds if they are used."
)
@click.option("--watch-namespace", "namespaces", multiple=True, metavar="NS", help="As in `run`; may be given again.")
@click.option("--secret-selector", metavar="LABELS", help="As in `run`.")
@click.option("--publish-service", "published", metavar="NS/NAME", callback=_full_name, help="As in `run`.")
@click.option(
    "--gateway-class", "classes", multiple=True, metavar="NAME", default=("egressproxy",), show_default=True,
    help="A GatewayClass of the gateway, with its Leases when the gateway writes status; may be given again.",
)  # fmt: skip
@click.option(
    "--service-account", "account", metavar="NS/NAME", default="egressproxy-system/egressproxy", show_default=True,
    callback=_full_name, help="The service account of the gateway.",
)  # fmt: skip
@click.option("--name", default="egressproxy", show_default=True, help="Name of the roles and bindings.")
def command(
    config: tuple[Path, ...],
    namespaces: tuple[str, ...],
    secret_selector: str | None,
    published: tuple[str, str] | None,
    classes: tuple[str, ...],
    account: tuple[str, str],
    name: str,
) -> None:
    """Print the roles and bindings of a gateway that reads its configuration from a cluster.

    With --config, only rights that these manifests need are printed. Namespaces and the service account have to exist
    already.

    \b
    Examples:
      egressproxy rbac --config policies/ | kubectl apply -f -
      egressproxy rbac --watch-namespace team-a --watch-namespace team-b --config policies/
      egressproxy rbac --secret-selector egressproxy.io/use=gateway --publish-service egress/gateway

    Exit status: 0 printed, 1 the manifests would be refused, 2 wrong usage.
    """
    from egressproxy.config.compile.interface import CONTROLLER
    from egressproxy.config.resources.gateway import GatewayClass
    from egressproxy.kubernetes.access import Needs, roles

    resources = _read(config) if config else None
    references = resources.wanted if resources is not None else None
    found = resources.of(GatewayClass) if resources is not None else ()
    ours = (each.name for each in found if each.spec.controller_name == CONTROLLER)
    needs = Needs(
        namespaces=tuple(dict.fromkeys(namespaces)),
        referenced=references,
        has_selector=secret_selector is not None,
        classes=tuple(dict.fromkeys((*classes, *ours))),
        published=published,
    )
    click.echo("# What egressproxy may do in a cluster, made by `egressproxy rbac`.")
    if secret_selector is not None:
        where = f"in namespace {', '.join(needs.namespaces)}" if needs.namespaces else "of the cluster"
        click.echo(_WITH_SELECTOR.format(where=where), nl=False)
    else:
        click.echo(_WITHOUT_CONFIG if references is None else _WITH_CONFIG, nl=False)
    for head, rules in roles(needs, name, account):
        click.echo(f"---\n{yaml.safe_dump(head, sort_keys=False)}", nl=False)
        if rules:
            click.echo("rules:\n" + "".join(_lines(rules)), nl=False)


def _read(config: tuple[Path, ...]) -> ResourceSet:
    """The manifests, compiled. Exits with 1 where they would be refused."""
    from egressproxy.config.reading.load import read_all
    from egressproxy.processes.loader.compilation import examined

    resources = read_all(config)
    compiled = examined(resources, ("127.0.0.1",))
    if compiled.problems:
        show_problems(compiled.problems, sys.stderr)
        sys.exit(1)
    return resources


def _lines(rules: tuple[Rule, ...]) -> Iterator[str]:
    why = ""
    for rule in rules:
        if rule.why != why:
            yield f"# {rule.why}\n"
        why = rule.why
        yield yaml.safe_dump([rule.to_manifest()], sort_keys=False, default_flow_style=None, width=1000)
