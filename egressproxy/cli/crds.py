"""`egressproxy crds`: the CustomResourceDefinitions of our own kinds, for `kubectl apply -f -`."""

from __future__ import annotations

from typing import Any

import click
import yaml

#: The first line of the file in deploy/crds, which is the whole output.
_HEAD = "# CustomResourceDefinitions of egressproxy.io, made by `egressproxy crds`.\n"


class _Plain(yaml.CSafeDumper):
    """Writes each value where it stands, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@click.command("crds")
@click.option(
    "--kind", metavar="KIND", help="Only this kind: Backend, EgressPolicy, PayloadProcessingPipeline, FilterType."
)
def command(kind: str | None) -> None:
    """Print the CustomResourceDefinitions of our kinds, those of the group egressproxy.io.

    Install Gateway API's definitions from its own releases. After an upgrade of egressproxy, apply these again.

    \b
    Examples:
      egressproxy crds | kubectl apply --server-side -f -
      egressproxy crds --kind EgressPolicy > egresspolicies.yaml
    """
    from egressproxy.kubeapi.crds import OUR_KINDS, crd
    from egressproxy.model.near_names import did_you_mean

    chosen = [each for each in OUR_KINDS if kind is None or each.kind.lower() == kind.lower()]
    if not chosen:
        names = [each.kind for each in OUR_KINDS]
        hint = did_you_mean(kind or "", names, f"possible are {', '.join(names)}")
        raise click.BadParameter(f"{kind!r} is no kind of egressproxy.io; {hint}", param_hint="--kind")
    click.echo(_HEAD, nl=False)
    for each in chosen:
        text = yaml.dump(crd(each), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)
        click.echo(f"---\n{text}", nl=False)
