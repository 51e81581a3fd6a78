"""The options that name an API server, and what is read of it."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from egressproxy.cli.options import Decorator, together
from egressproxy.run_options import LEASE_NAMESPACE, ClusterOptions

FILES, KUBERNETES = "files", "kubernetes"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
#: Options with another name than their value.
_CALLED: Final = {"namespaces": "watch-namespace", "gateway_namespaces": "gateway-namespace"}


def _namespaces(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for each in given:
        if not _NAMESPACE.fullmatch(each):
            raise click.BadParameter(f"{each!r} is not the name of a namespace")
    return tuple(dict.fromkeys(given))


def _namespace(ctx: click.Context, param: click.Parameter, given: str) -> str:
    return _namespaces(ctx, param, (given,))[0]


def _service(_ctx: click.Context, _param: click.Parameter, given: str) -> str:
    parts = given.split("/")
    if given and not (len(parts) == 2 and all(map(_NAMESPACE.fullmatch, parts))):
        raise click.BadParameter(f"{given!r} is not NAMESPACE/NAME")
    return given


cluster_options: Decorator = together(
    click.option(
        "--source", type=click.Choice((FILES, KUBERNETES)), default=FILES, show_default=True,
        help="Where the configuration comes from. kubernetes: an API server, whose objects are watched; objects of"
        " --config replace those of the same name.",
    ),
    click.option(
        "--kubeconfig", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE", default=None,
        help="The API server and the credentials for it. Default: in a Pod its service account, else $KUBECONFIG or"
        " ~/.kube/config.",
    ),
    click.option("--context", metavar="NAME", default=None, help="The context of the kubeconfig."),
    click.option(
        "--watch-namespace", "namespaces", multiple=True, metavar="NS", callback=_namespaces,
        help="A namespace whose objects are read; may be given again. Default: all.",
    ),
    click.option(
        "--gateway-namespace", "gateway_namespaces", multiple=True, metavar="NS", callback=_namespaces,
        help="A namespace whose Gateways and ListenerSets are taken from the API server; may be given again. Gateways"
        " of other namespaces bind no port, and their status says why. Default: all.",
    ),
    click.option(
        "--secret-selector", default="", metavar="LABELS",
        help="Read the Secrets and ConfigMaps with these labels, such as egress=yes. Default: those that the"
        " configuration refers to, by name.",
    ),
    click.option(
        "--publish-service", default="", metavar="NS/NAME", callback=_service,
        help="The Service in front of this gateway: the status of the Gateways shows its addresses.",
    ),
    click.option(
        "--lease-namespace", default=LEASE_NAMESPACE, metavar="NS", callback=_namespace,
        help="The namespace of the Leases that decide which gateway writes status, the same for all gateways of a"
        " cluster. With --watch-namespace, they are for objects without a namespace; the others are in the namespaces"
        f" that are watched. Default: {LEASE_NAMESPACE}.",
    ),
    click.option(
        "--state-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE", default=None,
        help="A file with the key for the Secrets of the last good configuration in --state-dir. Default: Secrets are"
        " not kept there.",
    ),
)  # fmt: skip


def cluster_of(given: dict[str, Any]) -> ClusterOptions | None:
    """What these options ask for, which are taken from `given`; None: files. Raises click.UsageError."""
    source, values = given.pop("source"), {each.name: given.pop(each.name) for each in fields(ClusterOptions)}
    if source == FILES:
        for asked in (each.name for each in fields(ClusterOptions) if values[each.name] != each.default):
            option = _CALLED.get(asked, asked.replace("_", "-"))
            raise click.UsageError(f"--{option} is for --source kubernetes: give that, too")
        return None
    if find_spec("kubernetes") is None or find_spec("kubernetes.aio") is None:
        raise click.UsageError(
            "--source kubernetes needs Kubernetes' own client, which is not installed: pip install"
            " 'egressproxy[kubernetes]' (in a checkout: '.[kubernetes]')"
        )
    return ClusterOptions(**values)
