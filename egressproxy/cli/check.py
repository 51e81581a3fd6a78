"""`egressproxy check`: validates a configuration as `run` would, without opening a socket; for pipelines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from egressproxy.cli.options import bind_option, config_option, experimental_option, output_option
from egressproxy.cli.problems import show_findings, show_problems
from egressproxy.cli.secrets import secret_options
from egressproxy.model.encoding import counted
from egressproxy.model.listening_place import place_text
from egressproxy.model.secret import SecretBytes

if TYPE_CHECKING:
    from egressproxy.config.compile.interface import Compiled
    from egressproxy.config.reading.load import ResourceSet
    from egressproxy.config.reading.problems import Problem
    from egressproxy.config.resources.meta import Resource
    from egressproxy.ir.policy import ExtensionIR
    from egressproxy.model.secret import ConfigSource, SecretSource
    from egressproxy.processes.loader.compilation import Machine

#: What our examples have in place of keys and passwords.
_UNREPLACED = "replace-me"
#: The lists of findings in the JSON report.
_KINDS = ("problems", "unserved", "warnings", "notes")


@click.command("check")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="PATH…")
@config_option("The same as PATH, as in `run`.")
@bind_option("As in `run`.")
@experimental_option()
@output_option
@click.option("--strict", is_flag=True, help="Fail on warnings, too.")
@click.option("--allow-unserved", is_flag=True, help="Do not fail on unserved parts.")
@click.option(
    "--secrets-elsewhere", is_flag=True,
    help="Forgive references to Secrets that are not here, and nothing else: for pipelines that have none.",
)  # fmt: skip
@secret_options
def command(
    paths: tuple[Path, ...],
    config: tuple[Path, ...],
    bind: tuple[str, ...],
    experimental: bool,
    output: str,
    strict: bool,
    allow_unserved: bool,
    secrets_elsewhere: bool,
    sources: tuple[SecretSource, ...],
) -> None:
    """Read files and folders as `run` would, and print every problem with its place.

    A problem is an invalid manifest, or a filter that cannot be built (`check` runs the files of Python filters): `run`
    would refuse the whole configuration. An `unserved` part is valid but cannot be served as written (a missing or
    unsuitable Secret, a dropped rule, a policy without a target): the rest would be served. A `warning` is about a part
    that is served as written but may not be meant. A `note` needs no action.

    \b
    Examples:
      egressproxy check policies/
      egressproxy check gateway.yaml secrets/ --strict
      egressproxy check policies/ --secrets-elsewhere --strict
      egressproxy check policies/ -o json | jq '(.problems + .unserved)[].message'

    Exit status: 0 the whole configuration would be served as written, 1 not (with --allow-unserved: only if it would be
    refused; with --strict: also if there are warnings), 2 wrong usage.
    """
    if not paths + config:
        raise click.UsageError("name a file or a folder to check: egressproxy check PATH…")
    from egressproxy.config.reading.problems import Severity
    from egressproxy.processes.loader.compilation import Machine

    machine = Machine(experimental=experimental)
    resources, compiled, findings = examine((*paths, *config, *sources), bind, machine)
    missing: list[str] = []
    if secrets_elsewhere:
        from egressproxy.cli.secrets_elsewhere import missing_secrets, with_stand_ins, without_stand_ins

        fuller, again, found = resources, compiled, findings
        while fresh := missing_secrets(fuller):  # a stand-in may lead to references that were not looked at before
            missing += fresh
            fuller = with_stand_ins(fuller, fresh, [*findings, *found])
            again, found = _examined(fuller, bind, machine)
        compiled = replace(again, problems=tuple(without_stand_ins(compiled.problems, again.problems, missing)))
        findings = without_stand_ins(findings, found, missing)
    refusing, unserved, warnings, notes = (
        [each for each in findings if each.severity is severity]
        for severity in (Severity.ERROR, Severity.UNSERVED, Severity.WARNING, Severity.NOTE)
    )
    problems = [*compiled.problems, *sorted(refusing, key=attrgetter("file", "line", "column"))]
    if problems:
        if output == "json":
            _print_json(False, {}, problems=problems, unserved=unserved)
        else:
            show_problems(problems, sys.stdout)
            show_findings(unserved, sys.stdout)
            less = f", {len(unserved)} not served as written" if unserved else ""
            click.echo(f"{counted(len(problems), 'problem')}{less}: this configuration would be refused as a whole.")
        sys.exit(1)
    listeners, backends = _listeners(compiled), _published_backends(resources)
    is_good = (allow_unserved or not unserved) and not (strict and warnings)
    if output == "json":
        more = {"objects": len(resources), "listeners": list(listeners), "backends": list(backends)}
        more |= {"secretsElsewhere": missing} if secrets_elsewhere else {}
        _print_json(is_good, more, unserved=unserved, warnings=warnings, notes=notes)
    else:
        show_findings(findings, sys.stdout)
        for listener in listeners:
            addresses = ", ".join(listener["addresses"])
            click.echo(f"listener {listener['gateway']} {listener['name']}: {listener['protocol']} on {addresses}")
        for backend in backends:
            click.echo(f"backend {backend['name']} ({backend['kind']}): read as {backend['readAs']}")
        for name in missing:
            click.echo(f"elsewhere: Secret {name}")
        less = f" {len(unserved)} not served as written," if unserved else ""
        click.echo(f"{counted(len(resources), 'object')},{less} {counted(len(warnings), 'warning')}.")
    sys.exit(0 if is_good else 1)


def examine(
    sources: Sequence[ConfigSource], bind: tuple[str, ...], machine: Machine, state: Path | None = None
) -> tuple[ResourceSet, Compiled, list[Problem]]:
    """The objects of a configuration, what is compiled of them (with `problems`), and what was found besides. `state`
    is the folder of objects written through the API.
    """
    from egressproxy.config.reading.load import read_all

    resources = read_all(sources, state)
    return resources, *_examined(resources, bind, machine)


def _examined(resources: ResourceSet, bind: tuple[str, ...], machine: Machine) -> tuple[Compiled, list[Problem]]:
    from egressproxy.config.compile.status.status_warnings import all_warnings
    from egressproxy.processes.loader.compilation import examined

    compiled = examined(resources, bind, machine=machine)
    found = [*all_warnings(resources, compiled), *_build_filters(resources, compiled), *_unreplaced(resources)]
    return compiled, found


def _unreplaced(resources: ResourceSet) -> Iterator[Problem]:
    """Notes on values that are meant to be replaced."""
    from egressproxy.config.compile.interface import problem_at
    from egressproxy.config.reading.problems import Severity
    from egressproxy.config.resources.core import Secret

    for resource in resources.objects:
        written = resource.to_manifest()
        if isinstance(resource, Secret):
            written |= {"stringData": resource.string_data, "data": resource.data}
        for path in _paths_of(written, ""):
            message, remedy = f"the value still has {_UNREPLACED}", "write your own in its place"
            yield problem_at(resource, path, message, remedy, severity=Severity.NOTE, code="Unreplaced")


def _paths_of(value: object, path: str) -> Iterator[str]:
    """Where in this part of a manifest a text is meant to be replaced."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _paths_of(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _paths_of(each, f"{path}[{index}]")
    elif _UNREPLACED in (value.reveal().decode("latin-1") if isinstance(value, SecretBytes) else str(value)):
        yield path


def _build_filters(resources: ResourceSet, compiled: Compiled) -> list[Problem]:
    """The filters whose manifest or file is wrong (severity ERROR), the Python filters that cannot be built with their
    Secrets, and those that name what this machine has not, with their places.
    """
    from egressproxy.ir.gateway import extensions

    if next(extensions(compiled.spec), None) is None:
        return []  # importing the filters would take as long as reading a small configuration
    from egressproxy.config.compile.interface import problem_at
    from egressproxy.config.reading.problems import Problem, Severity
    from egressproxy.doors.catalog import Catalog
    from egressproxy.filters.instances import UnusableFilter, failures, machine_problems

    catalog = Catalog()
    found: dict[Problem, None] = {}  # a policy with two targets declares its filters twice
    for spec, error in failures(compiled.spec, catalog):
        message = str(error).removeprefix(f"{spec.source}: ")
        owner, path = _declaration(resources, spec)
        problem = Problem("", 0, 0, spec.source, "", message) if owner is None else problem_at(owner, path, message)
        if isinstance(error, UnusableFilter):
            why = f"{message}; until it is mended, requests are refused"
            problem = replace(problem, message=why, severity=Severity.UNSERVED, code="InvalidSecret")
        found[problem] = None
    for spec, field, why in machine_problems(compiled.spec, catalog):
        owner, path = _declaration(resources, spec)
        why = f"{why}; where the gateway runs and it is so, requests are refused"
        problem = (
            Problem("", 0, 0, spec.source, "", why) if owner is None else problem_at(owner, f"{path}.{field}", why)
        )
        found[replace(problem, severity=Severity.WARNING, code="MachineLacks")] = None
    return resources.broken.others(found)


def _declaration(resources: ResourceSet, spec: ExtensionIR) -> tuple[Resource | None, str]:
    """The object that declared a filter, and the field; "" for the filters of a route, which have no names."""
    from egressproxy.config.compile.interface import scope_of

    owners = [resource for resource in resources.objects if str(resource) == spec.source]
    owners.sort(key=lambda owner: scope_of(owner.key) != spec.scope)  # Backends of several groups may share a name
    for owner in owners:
        for index, extension in enumerate(getattr(getattr(owner, "spec", None), "extensions", ())):
            if extension.label == spec.name:
                return owner, f"spec.extensions[{index}].config"
    return (owners[0] if owners else None), f"spec.{spec.name}" if spec.name.startswith("limits.") else ""


def _print_json(is_good: bool, more: Mapping[str, Any], **found: Sequence[Problem]) -> None:
    lists = {kind: [each.as_dict() for each in found.get(kind, ())] for kind in _KINDS}
    click.echo(json.dumps({"ok": is_good, **lists, **more}, indent=2))


def _listeners(compiled: Compiled) -> Iterator[dict[str, Any]]:
    for listener in compiled.spec.listeners:
        addresses = [place_text(each, listener.port) for each in listener.addresses]
        protocol = listener.protocol.value
        yield {"gateway": listener.gateway, "name": listener.name, "protocol": protocol, "addresses": addresses}


def _published_backends(resources: ResourceSet) -> Iterator[dict[str, str]]:
    """What became of the Backends of other groups, whose forms are not ours."""
    from egressproxy.config.compile.backends.backend_references import BACKEND_KINDS
    from egressproxy.config.compile.backends.backend_status import summary
    from egressproxy.config.compile.backends.backend_tls import BackendTlsPolicies
    from egressproxy.config.compile.interface import kind_of
    from egressproxy.config.compile.references import References
    from egressproxy.config.resources.meta import OUR_GROUP

    policies = BackendTlsPolicies(resources, References(resources))
    for kind in BACKEND_KINDS:
        for backend in resources.of(kind) if kind.GROUP != OUR_GROUP else ():
            yield {"name": backend.full_name, "kind": kind_of(backend.key), "readAs": summary(backend, policies)}
