"""From manifests to what is served: load and compile with the filters and the expressions of this data plane."""

from __future__ import annotations

import codecs
import gc
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from egressproxy.config.compile.compiler import compile_config
from egressproxy.config.compile.extensions.config_schema import settings_adapter
from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.otlp_environment import NO_TELEMETRY, OtlpSettings, otlp_settings
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.reading.problems import ConfigError
from egressproxy.config.resources.kinds import KINDS
from egressproxy.doors.catalog import Catalog
from egressproxy.filters.builtin import BUILTIN, builtin_type
from egressproxy.processes.loader.denials import denials
from egressproxy.routing.patterns import compile_pattern

log = logging.getLogger(__name__)

#: What is imported where a config asks for it: expressions, what CredentialInjector may be, since the catalog makes
#: one to see whether its Secrets fit, and what listeners ask of OpenSSL.
_ON_DEMAND: Final = (
    "re2",
    "egressproxy.filters.credentials.placeholder",
    "egressproxy.filters.credentials.aws_injector",
    "egressproxy.filters.credentials.caller_token",
    "egressproxy.filters.credentials.request_signer",
    "egressproxy.filters.credentials.caller_credentials",
    "egressproxy.filters.credentials.token_exchange",
    "egressproxy.identity.key_sets",
    "egressproxy.net.tls_contexts.verify_callbacks",
)
#: Of text in manifests, and of credentials that are looked for in bodies.
_CODECS: Final = ("utf-8-sig", "utf-16-le", "utf-16-be")


class Machine(NamedTuple):
    """The machine that serves: why it cannot bind an address or interface ("" if it can), the mark of its CA
    certificates, why addresses and ports could not be bound, the namespaces whose Gateways may bind any, if not all,
    whether experimental parts of Gateway API are served, and whether a Service is in front of it. The default is for
    `check`, which may run elsewhere.
    """

    why_unusable: Callable[[str], str] = lambda _address: ""
    system_roots: str = ""
    unbound: Mapping[tuple[str, int], str] = MappingProxyType({})
    gateway_namespaces: tuple[str, ...] = ()
    experimental: bool = False
    has_service: bool = False


ELSEWHERE: Final = Machine()


def compiled(
    resources: ResourceSet, bind: tuple[str, ...], previous: Compiled | None = None, machine: Machine = ELSEWHERE
) -> Compiled:
    """The configuration of these objects (`reading.load.read_all`). `bind`: for Gateways without addresses. Raises
    ConfigError with every problem.
    """
    made = examined(resources, bind, previous, machine)
    if made.problems:
        raise ConfigError(made.problems)
    return made


def examined(
    resources: ResourceSet, bind: tuple[str, ...], previous: Compiled | None = None, machine: Machine = ELSEWHERE
) -> Compiled:
    """What can be compiled of these objects: `problems` of the result say why it must not be served."""
    made = compile_config(resources, Catalog(), _defaults(bind, machine), previous)
    if resources.problems:
        problems = [*resources.problems, *resources.broken.others(made.problems)]
        made = replace(made, problems=tuple(sorted(problems, key=attrgetter("file", "line", "column"))))
    return made


def _defaults(bind: tuple[str, ...], machine: Machine) -> Defaults:
    return Defaults(
        bind_addresses=bind,
        check_pattern=compile_pattern,
        can_take_any_certificate=_can_take_any_certificate,
        denials=denials,
        why_unusable=machine.why_unusable,
        system_roots=machine.system_roots,
        unbound=machine.unbound,
        gateway_namespaces=machine.gateway_namespaces,
        experimental=machine.experimental,
        has_service=machine.has_service,
        telemetry=_telemetry(),
    )


def _telemetry() -> OtlpSettings:
    try:
        return otlp_settings(os.environ)
    except ValueError as error:  # `run` has refused to start, unless a file has gone since
        log.warning("%s; nothing is exported by these variables", error)
        return NO_TELEMETRY


def _can_take_any_certificate() -> bool:
    from egressproxy.net.tls_contexts.verify_callbacks import can_take_any_certificate  # few listeners ask

    return can_take_any_certificate()


def preparations() -> Iterator[None]:
    """Make, some milliseconds at a time, what a loading would make at its first use: models, and checks of configs."""
    for codec in _CODECS:
        codecs.lookup(codec)
    for kind in KINDS:
        kind.model_rebuild()
        yield
    for name in BUILTIN:
        found = builtin_type(name)
        if found is not None:
            settings_adapter(found.config_model)
        yield
    for module in _ON_DEMAND:
        import_module(module)
        yield
    import_module("egressproxy.filters.packages").installed()
    yield
    gc.collect()
