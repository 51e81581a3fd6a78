"""`egressproxy run`: reads the options, and passes them to `app.run`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from egressproxy.cli.client_options import CLIENT_OPTIONS, client_options, login_of
from egressproxy.cli.client_settings import ClientSettings
from egressproxy.cli.cluster_options import cluster_of, cluster_options
from egressproxy.cli.option_values import seconds, whole_number
from egressproxy.cli.options import ConfigByOption, admin_option, bind_option, config_option
from egressproxy.cli.secrets import secret_options
from egressproxy.cli.serving import begin
from egressproxy.cli.serving_options import MAX_DRAIN_S, serving_options
from egressproxy.cli.tape_options import TAPE_OPTIONS, tape_options, with_tapes
from egressproxy.config.otlp_environment import OPTION, SIGNALS_OPTION, otlp_settings, signals_of
from egressproxy.model.secret import SecretBytes, SecretSource
from egressproxy.model.unix_socket import SCHEME, parse_unix_socket
from egressproxy.net.tls_contexts.key_log import open_key_log
from egressproxy.run_options import OPEN_PORT, RunOptions

#: Of a session key: a shorter one could be guessed, a longer file is not a key.
MIN_KEY_BYTES = 32
MAX_KEY_BYTES = 4096
#: More than any process has descriptors, or memory for requests.
MAX_AT_ONCE = 10_000_000
#: What is another default with a command: its output is its own, and it does not wait for what it has left behind.
_BESIDE_A_COMMAND: Final = {"admin": None, "access_log": "off", "log_level": "warning", "drain_timeout_s": 1.0}
#: Where `ctx.meta` has the command.
_COMMAND: Final = f"{__name__}.command"


def _key_log(ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """The file, which can be written, and which nobody else can read. Raises click.BadParameter."""
    if path is not None and not ctx.resilient_parsing:  # else a shell completes the line
        try:
            os.close(open_key_log(path))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise click.BadParameter(f"{path}: {why}", param_hint="--tls-key-log") from None
    return path


def _otlp(variable: str, check: Callable[[str], object]) -> Callable[..., None]:
    """Leaves the option to the processes that compile configurations. Raises click.BadParameter, by `check`."""

    def leave(_ctx: click.Context, param: click.Parameter, written: str | None) -> None:
        if written is not None:
            try:
                check(written)
            except ValueError as error:
                raise click.BadParameter(str(error), param=param) from None
            os.environ[variable] = written

    return leave


def _check_endpoint(written: str) -> None:
    if not written.strip():
        raise ValueError("it is empty: write a URL such as http://otel-collector:4318, or leave the option out")
    otlp_settings({OPTION: written})


def _check_variables() -> None:
    """Raises click.UsageError, which names the variable."""
    try:
        otlp_settings(os.environ)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _takeover(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """The absolute path. Raises click.BadParameter."""
    if path is None:
        return None
    path = path.absolute()
    try:
        parse_unix_socket(f"{SCHEME}{path}")
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--takeover") from None
    return path


class _WithCommand(ConfigByOption):
    """What stands behind `--` is a command, whatever it looks like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's. Raises click.UsageError where nothing stands behind `--`."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_COMMAND] = args[:at], args[at + 1 :]
            if not ctx.meta[_COMMAND] and not ctx.resilient_parsing:
                raise click.UsageError("a command has to follow --", ctx)
        elif not ctx.resilient_parsing:
            first = self._first_word(args)
            if first is not None and shutil.which(args[first]) and not Path(args[first]).exists():
                meant = shlex.join(["egressproxy", "run", *args[:first], "--", *args[first:]])
                raise click.UsageError(f"a command has to follow --: write {meant}", ctx)
        return super().parse_args(ctx, args)

    def _first_word(self, args: list[str]) -> int | None:
        """Where the first word stands that is no option, and no value of one."""
        with_value = {name for each in self.params if not getattr(each, "is_flag", False) for name in each.opts}
        is_value = False
        for at, word in enumerate(args):
            if not is_value and not word.startswith("-"):
                return at
            is_value = not is_value and word in with_value
        return None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- CMD [ARG]...]"]


def _key(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> SecretBytes:
    """The key in this file, without surrounding whitespace. Raises click.BadParameter."""
    if path is None:
        return SecretBytes(b"")
    try:
        with path.open("rb") as file:
            written = file.read(MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--session-key") from None
    if not MIN_KEY_BYTES <= len(written) <= MAX_KEY_BYTES:
        message = f"{path} contains {len(written)} bytes; a key has {MIN_KEY_BYTES} to {MAX_KEY_BYTES}"
        raise click.BadParameter(f"{message}: write one with `openssl rand -hex 32`", param_hint="--session-key")
    return SecretBytes(written)


@click.command("run", cls=_WithCommand)
@config_option("A manifest, or a folder of *.yaml, *.yml and *.json; may be given again. Watched for changes.")
@bind_option(
    "Where Gateways without `spec.addresses` listen; may be given again. From a network such as 127.0.1.0/24 every"
    " Gateway gets an address of its own. Every client that reaches the address can use the gateway."
)
@click.option(
    "--port", "open_port", type=whole_number(0, 65535), default=OPEN_PORT, show_default=True, metavar="N",
    help="The port of the open proxy, without --config; 0: the system chooses. For Gateways see their listeners.",
)  # fmt: skip
@admin_option(
    "Health, metrics, the admin page (/ui) and the configuration in service. Read-only except for POST /reload,"
    " /cache/purge, /holds and /kill-switch and, with --api-writes, objects. `off`: none.",
    may_be_off=True,
)
@cluster_options
@serving_options
@click.option(
    "--state-dir", "state_dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="The folder for state that survives a restart: objects written through the admin API (served beside"
    " --config), the last good objects of an API server, and blocked clients (kill-switch). Created if it does not"
    " exist. Only one process can use it at a time.",
)  # fmt: skip
@click.option(
    "--api-writes", is_flag=True,
    help="Accept writes (kubectl apply) on the admin API: on loopback from programs of this machine, on other addresses"
    " with --api-token-file. Needs --state-dir.",
)  # fmt: skip
@click.option(
    "--otlp-endpoint", metavar="URL", default=None, callback=_otlp(OPTION, _check_endpoint), expose_value=False,
    help="A collector of OpenTelemetry, for the traces of Gateways whose XTelemetryPolicy names none, and for what"
    " --otlp-signals lists: by gRPC on port 4317, else by HTTP. The OTEL_ variables of the SDKs hold, too. Default:"
    " $OTEL_EXPORTER_OTLP_ENDPOINT, or none.",
)  # fmt: skip
@click.option(
    "--otlp-signals", metavar="LIST", default=None, callback=_otlp(SIGNALS_OPTION, signals_of), expose_value=False,
    help="What goes to the collector: a list of traces, metrics and logs (the access log). Default:"
    " $OTEL_TRACES_EXPORTER, $OTEL_METRICS_EXPORTER and $OTEL_LOGS_EXPORTER (otlp or none), else traces.",
)  # fmt: skip
@click.option(
    "--drain-delay", "drain_delay_s", type=seconds(MAX_DRAIN_S), default=0.0, show_default=True, metavar="SECONDS",
    help="How long connections are accepted and served after SIGTERM, while /readyz answers 503, before the drain: for"
    " load balancers that take time to send new connections elsewhere.",
)  # fmt: skip
@click.option(
    "--takeover", type=click.Path(path_type=Path), default=None, metavar="PATH", callback=_takeover,
    help="A Unix socket for takeovers. The gateway that serves it passes its listening sockets to this process, and"
    " drains once this process serves. This process then serves the socket for the next takeover.",
)  # fmt: skip
@click.option(
    "--socket-dir", "socket_dirs", type=click.Path(exists=True, file_okay=False, path_type=Path), multiple=True,
    metavar="DIR",
    help="A folder in which, or below which, Gateways may have Unix sockets; may be given again. A configuration with"
    " a socket elsewhere is refused. Default: anywhere, with --api-writes nowhere.",
)  # fmt: skip
@click.option(
    "--ui-oidc-issuer",
    default="",
    metavar="URL",
    help="The issuer (OpenID Connect) at which people sign in to the admin page. The gateway asks it directly.",
)
@click.option(
    "--ui-oidc-client-id",
    default="",
    metavar="ID",
    help="The public client (code with PKCE) for which its tokens are; its redirect URI is the URL of the page, …/ui.",
)
@click.option(
    "--ui-oidc-allow", multiple=True, metavar="EMAIL|group:NAME",
    help="Who may come in, with the rights of the token of --api-token-file: a verified email address, or a group of"
    " the claim `groups`. May be given again.",
)  # fmt: skip
@click.option(
    "--guarded", is_flag=True,
    help="Refuse a reload that would allow recently denied requests, until `egressproxy reload --acknowledge` confirms"
    " it.",
)  # fmt: skip
@click.option(
    "--session-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PATH", callback=_key,
    help="A file with the key (32 bytes or more) that signs the tokens of session persistence, for several gateways"
    " with the same sessions, and for sessions that survive a restart. Read at the start. Default: a random key.",
)  # fmt: skip
@click.option(
    "--zone", default="", envvar="EGRESSPROXY_ZONE", metavar="NAME",
    help="The zone that the gateway runs in (topology.kubernetes.io/zone of its node): hints of EndpointSlices and"
    " traffic.loadBalancer.zoneAware prefer endpoints of this zone. Default: $EGRESSPROXY_ZONE, or none.",
)  # fmt: skip
@click.option(
    "--max-connections", type=whole_number(0, MAX_AT_ONCE), default=None, metavar="N",
    help="Connections of clients to all listeners, in each worker. Default: half of the file descriptors (ulimit -n);"
    " 0: no limit.",
)  # fmt: skip
@click.option(
    "--max-requests", type=whole_number(0, MAX_AT_ONCE), default=0, metavar="N",
    help="Requests and tunnels in progress at once, in each worker; further ones get 503, by priority and by tenant."
    " Default: no limit.",
)  # fmt: skip
@click.option(
    "--tls-key-log", type=click.Path(dir_okay=False, path_type=Path), default=None, metavar="FILE", callback=_key_log,
    help="Write the keys of all TLS connections, of clients and to backends, to this file (NSS key log, for"
    " Wireshark). The file decrypts recorded traffic: use it only for debugging.",
)  # fmt: skip
@secret_options
@click.option(
    "--listener", metavar="NAME", default="",
    help="The forward-proxy listener that the command uses, as LISTENER, GATEWAY/LISTENER or"
    " NAMESPACE/GATEWAY/LISTENER, if there are several.",
)  # fmt: skip
@client_options
@tape_options
@click.pass_context
def command(ctx: click.Context, /, sources: tuple[SecretSource, ...], listener: str, **given: Any) -> None:
    """Serve until SIGTERM or SIGINT, then drain. SIGHUP reads the configuration again, or drains if the terminal has
    closed. Listening sockets of systemd are used.

    With a command after `--`, serve until the command ends, and exit with its status. The command finds the gateway by
    its environment (`egressproxy env`). The options from --listener on are only for commands.

    Without --config the gateway is an open forward proxy on 127.0.0.1:3128, for a first look; only this machine can
    reach it. With a configuration it denies what the configuration does not allow.

    With --record, what the command asks the network is written to tapes, and with --replay answered from them.

    \b
    Examples:
      egressproxy run
      egressproxy run --port 8888
      egressproxy run --config policies/
      egressproxy run --config gateway.yaml --config secrets/ --bind 0.0.0.0
      egressproxy run --config policies/ --secret openai=/var/run/secrets/openai --secret-env front:token=FRONT_TOKEN
      egressproxy run --state-dir /var/lib/egressproxy --api-writes
      egressproxy run --config policies/ --takeover /run/egressproxy/takeover.sock
      egressproxy run --config policies/ --secret agents/ca=egressproxy-ca -- npm ci
      egressproxy run --record tapes/ -- pytest
      egressproxy run --replay tapes/ --strict -- pytest
      egressproxy run --source kubernetes --state-dir /var/lib/egressproxy
      egressproxy run --config policies/ --workers 4 --access-log /var/log/egress.jsonl --metrics 0.0.0.0:9090

    Exit status: 0 after a drain, 1 if the configuration or a listener fails at the start, 2 for wrong usage. With a
    command, that of the command; 125 if the gateway fails, 126 if the command cannot be executed, 127 if it does not
    exist.
    """
    wrapped: list[str] = ctx.meta.get(_COMMAND, [])
    clients = {name: given.pop(name) for name in CLIENT_OPTIONS}
    taped = {name: given.pop(name) for name in TAPE_OPTIONS}
    if wrapped:
        beside = {name: each for name, each in _BESIDE_A_COMMAND.items() if not _is_given(ctx, name)}
        given |= beside
    elif unused := [name for name in ("listener", *CLIENT_OPTIONS, *TAPE_OPTIONS) if _is_given(ctx, name)]:
        option = next(each.opts[0] for each in ctx.command.params if each.name == unused[0])
        raise click.UsageError(f"{option} is for a command: write the command after --")
    login = login_of(clients["token"], clients["user"], clients["password"])
    options = options_of(ctx, given, sources)
    is_any_port = options.open_port == 0 or (wrapped and not _is_given(ctx, "open_port"))
    if not options.is_configured and is_any_port:
        from egressproxy.net.listening import reserved_port

        options = replace(options, open_port=ctx.with_resource(reserved_port()).getsockname()[1])
    if not wrapped:
        sys.exit(begin(options))
    from egressproxy.cli.wrapped_command import run_wrapped

    settings = ClientSettings(no_proxy=clients["no_proxy"], base_urls=clients["base_urls"])
    options, tapes = with_tapes(taped, options)
    sys.exit(run_wrapped(options, wrapped, settings, login, clients["ca"], listener, tapes))


def options_of(ctx: click.Context, given: dict[str, Any], sources: tuple[SecretSource, ...]) -> RunOptions:
    """What these values of the options ask for together. Raises click.UsageError where they do not fit together."""
    _check_variables()
    cluster = cluster_of(given)
    options = RunOptions(secrets=sources, cluster=cluster, **given)
    _check_state(options)
    if sources and not options.is_configured:
        raise click.UsageError("Secrets need a configuration: give --config, too")
    _check_writes(options)
    if not options.is_configured and _is_given(ctx, "bind"):
        raise click.UsageError(
            "--bind is for the Gateways of a configuration; without one the open proxy listens on 127.0.0.1 only:"
            " give --config, or leave --bind out (--port gives another port)"
        )
    if options.is_configured and _is_given(ctx, "open_port"):
        raise click.UsageError(
            "--port is for the open proxy; with a configuration the ports are in spec.listeners of its Gateways"
        )
    return options


def _is_given(ctx: click.Context, name: str) -> bool:
    """Whether the command line has the option. A variable of the environment is meant for other gateways, too: a
    gateway for one command does not take its admin address from there.
    """
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _check_state(options: RunOptions) -> None:
    """The operator's files and those of the API must be in different folders. Raises click.UsageError."""
    if options.state_dir is None:
        return
    state = options.state_dir.resolve()
    for path in options.config:
        if path.resolve().is_relative_to(state):
            raise click.UsageError(
                f"--config {path} is in --state-dir {options.state_dir}, which is for what the API writes: use another"
            )


def _check_writes(options: RunOptions) -> None:
    """Raises click.UsageError for options of writes and logins that do not fit together."""
    login = (options.ui_oidc_issuer, options.ui_oidc_client_id, options.ui_oidc_allow)
    if any(login):
        from egressproxy.admin.oidc import GROUP, is_safe

        if not all(login):
            raise click.UsageError("--ui-oidc-issuer, --ui-oidc-client-id and --ui-oidc-allow belong together")
        if not is_safe(options.ui_oidc_issuer):
            raise click.UsageError(f"--ui-oidc-issuer is {options.ui_oidc_issuer!r}: write a URL with https://")
        for each in options.ui_oidc_allow:
            if not each.removeprefix(GROUP) or not ("@" in each or each.startswith(GROUP)):
                raise click.UsageError(f"--ui-oidc-allow is {each!r}: write an email address, or group:NAME")
    if options.api_writes and options.cluster is not None:
        raise click.UsageError(
            "--api-writes is for a gateway without a cluster: with --source kubernetes, write to its API server"
        )
    if options.api_writes and options.state_dir is None:
        raise click.UsageError("--api-writes needs a folder for what is written: give --state-dir")
    if options.api_writes and options.admin is None:
        raise click.UsageError("--api-writes needs the admin address: leave --admin off out")
    if options.api_writes and options.admin is not None and options.lacks_token:
        raise click.UsageError(
            f"--api-writes on {options.admin[0]} would let the network write: give --api-token-file, or --admin on"
            " loopback"
        )
