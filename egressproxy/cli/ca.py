"""`egressproxy ca`: the CA that signs the certificates of tunnels that are opened (EgressPolicy `intercept`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from egressproxy.cli.asking import AdminAddress, ask
from egressproxy.cli.options import asking_options, output_option
from egressproxy.cli.styled_lines import print_found, printable

if TYPE_CHECKING:
    from egressproxy.cli.ca_folder import CaFolder

_folder = click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default="egressproxy-ca")
#: A CA for laboratories and single machines; one that is to live longer is the operator's own.
_DAYS = 730
_MAX_DAYS = 3650


def _names(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from egressproxy.gateway.leaf_certificates.minting import DNS_NAME

    for value in values:
        if not DNS_NAME.fullmatch(value):
            raise click.BadParameter(f"{value!r} is no DNS name in lower case: a name stands for all below it, too")
    return values


@click.group("ca")
def command() -> None:
    """Make, show and replace the CA for interception, in files or in a running gateway.

    `run --secret NAMESPACE/NAME=FOLDER` reads the folder as a Secret. Protect tls.key: its holder can impersonate every
    server to clients that trust ca.crt.

    \b
    Examples:
      egressproxy ca init --permit openai.com --permit anthropic.com
      egressproxy ca trust
      egressproxy ca new sandbox-1 --policy agents/outbound --namespace agents --service-account sandbox-1
    """


@command.command("init", short_help="Make a new CA.")
@_folder
@click.option("--name", metavar="TEXT", default="", help="The common name that clients show.")
@click.option(
    "--days", type=click.IntRange(1, _MAX_DAYS), default=_DAYS, show_default=True, help="Days until the CA expires."
)
@click.option(
    "--permit", multiple=True, metavar="DNSNAME", callback=_names,
    help="Clients accept the CA only for this name and names below it; may be given again.",
)  # fmt: skip
@click.option(
    "--exclude", multiple=True, metavar="DNSNAME", callback=_names,
    help="Clients never accept the CA for this name and names below it; may be given again.",
)  # fmt: skip
def init(folder: Path, name: str, days: int, permit: tuple[str, ...], exclude: tuple[str, ...]) -> None:
    """Make a CA (ECDSA P-256) in FOLDER (egressproxy-ca): tls.crt and tls.key for the gateway, ca.crt for clients.

    With --permit a stolen key works only for these names (RFC 5280 section 4.2.1.10). Without it, whoever has the key
    can impersonate every server to clients that trust ca.crt.

    \b
    Examples:
      egressproxy ca init
      egressproxy ca init ca --permit api.openai.com --days 90

    Exit status: 0 done, 1 the folder has a CA already or cannot be written.
    """
    from egressproxy.cli.ca_folder import CaFolder

    made = _done(folder, lambda: CaFolder.create(folder, name, days, permit, exclude))
    _tell(made)
    if not permit:
        click.echo(
            "\nNo --permit: whoever has tls.key can impersonate every server to clients that trust ca.crt. To limit it,"
            " make the CA\nin another folder with --permit for each name that `intercept` will open (and all below it)."
        )
    click.echo(f"\nNext: run --secret NAMESPACE/NAME={folder}, an EgressPolicy with intercept, and `ca trust {folder}`")


@command.command("show", short_help="Show a CA and its validity.")
@_folder
@output_option
def show(folder: Path, output: str) -> None:
    """Show the CA in FOLDER (egressproxy-ca), without its key.

    \b
    Examples:
      egressproxy ca show
      egressproxy ca show /run/secrets/ca -o json

    Exit status: 0, or 1 if the CA does not exist or cannot be used.
    """
    from egressproxy.cli.ca_folder import CaFolder

    found = _done(folder, lambda: CaFolder.read(folder))
    print_found(found.values(), output, lambda: _tell(found))


@command.command("rotate", short_help="Replace a CA by a new one.")
@_folder
@click.option("--finish", is_flag=True, help="All clients have the new ca.crt: remove the old CA.")
@click.option("--leaked", is_flag=True, help="The old key has leaked: remove the old CA at once.")
def rotate(folder: Path, *, finish: bool, leaked: bool) -> None:
    """Replace the CA in FOLDER (egressproxy-ca) by a new one with the same constraints.

    The old CA signs the new one, and ca.crt has both, so clients that trust the old CA go on until it expires. Give
    ca.crt to all clients, then run `rotate --finish`. A running gateway that reads FOLDER applies each step at once.

    \b
    Examples:
      egressproxy ca rotate
      egressproxy ca rotate --finish
      egressproxy ca rotate --leaked

    Exit status: 0 done, 1 the CA does not exist, or the folder cannot be written.
    """
    from egressproxy.cli.ca_folder import CaFolder

    if finish and leaked:
        raise click.UsageError("--leaked does what --finish does, too: give one of them")
    found = _done(folder, lambda: CaFolder.read(folder))
    _tell(_done(folder, found.finish if finish else lambda: found.rotate(keeps_old=not leaked)))
    if leaked:
        click.echo(f"\nNext: give {folder / 'ca.crt'} to all clients: they do not trust the new CA until they have it")
    elif not finish:
        click.echo(f"\nNext: give {folder / 'ca.crt'} to all clients, then `ca rotate {folder} --finish`")


@command.command("trust", short_help="Print how to make clients and systems trust a CA.")
@_folder
def trust(folder: Path) -> None:
    """Print how to make each system and client trust the CA in FOLDER (egressproxy-ca).

    The verb changes nothing. Prefer steps for one program or shell to steps for a whole machine.

    \b
    Examples:
      egressproxy ca trust
      egressproxy ca trust /run/secrets/ca

    Exit status: 0, or 1 if the CA does not exist.
    """
    from egressproxy.cli.ca_folder import CaFolder

    found = _done(folder, lambda: CaFolder.read(folder))
    click.echo(instructions(found.path.resolve() / "ca.crt", found.values()["sha256"]), nl=False)


@command.command("new", short_help="Make a CA of one client in a running gateway.")
@click.argument("name")
@click.option("--policy", required=True, metavar="NS/NAME", help="The EgressPolicy with `intercept.issuing`.")
@click.option("--namespace", metavar="NAME", help="The namespace of the client.")
@click.option("--service-account", "service_account", metavar="NAME", help="Its service account, with --namespace.")
@click.option("--group", metavar="NAME", help="A group of the client.")
@click.option("--claim", metavar="NAME=VALUE", help="A claim of its token.")
@click.option("--identity", metavar="NAME", help="Its name, `identity` in the access log, such as a SPIFFE ID.")
@click.option("--lifetime", metavar="TIME", help="When it ends: 30d, 12h. Default: the longest that the policy allows.")
@click.option(
    "--permit", multiple=True, metavar="DNSNAME",
    help="Clients accept the CA only for this name and names below it; may be given again. Default: the policy's.",
)  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the PEM there.")
@asking_options
def new(
    name: str,
    policy: str,
    namespace: str | None,
    service_account: str | None,
    group: str | None,
    claim: str | None,
    identity: str | None,
    lifetime: str | None,
    permit: tuple[str, ...],
    out: Path | None,
    output: str,
    admin: AdminAddress,
) -> None:
    """Make the CA NAME, which signs the certificates that one client is shown, and print its certificate.

    The key never leaves the gateway, which needs --state-dir and --api-writes. The CA is in force in every worker when
    the verb returns, and holds over restarts. The client has to be known: see `identity` of EgressPolicy.

    \b
    Examples:
      egressproxy ca new sandbox-1 --policy agents/outbound --namespace agents --service-account sandbox-1
      egressproxy ca new ci --policy agents/outbound --identity agents/keys#ci --lifetime 12h --out ci.crt

    Exit status: 0 done, 1 the name or the client has a CA, 2 wrong usage, no response or a refusal.
    """
    said = {
        "namespace": namespace, "serviceAccount": service_account, "group": group, "claim": claim,
        "identity": identity, "lifetime": lifetime,
    }  # fmt: skip
    pairs = [("policy", policy), ("new", name), *((key, value) for key, value in said.items() if value)]
    pairs += [("permit", each) for each in permit]
    if out is not None and not out.parent.is_dir():
        raise click.UsageError(f"--out: there is no folder {out.parent}: make it first")
    made = ask(admin, "/intercept/cas", pairs, method="POST")
    if out is not None:
        try:
            out.write_text(made["certificate"], "ascii")
        except OSError as error:
            raise click.ClickException(f"{out}: {error.strerror or error}; the CA is in force") from None
    if output == "json":
        click.echo(json.dumps(made, indent=2))
    elif out is None:
        click.echo(made["certificate"], nl=False)
    else:
        _tell_issued([made])


@command.command("list", short_help="Show the CAs of clients in a running gateway.")
@click.option("--policy", default="", metavar="NS/NAME", help="Those of one EgressPolicy. Default: of all.")
@asking_options
def list_issued(policy: str, output: str, admin: AdminAddress) -> None:
    """Print the CAs that `ca new` has made: name, policy, state, end, client and fingerprint.

    \b
    Examples:
      egressproxy ca list
      egressproxy ca list --policy agents/outbound -o json

    Exit status: 0, or 2 for wrong usage, no response or a refusal.
    """
    found = ask(admin, "/intercept/cas", [("policy", policy)] if policy else [])
    print_found(found, output, lambda: _tell_issued(found["cas"]))


@command.command("revoke", short_help="Withdraw the CA of a client in a running gateway.")
@click.argument("name")
@click.option("--policy", required=True, metavar="NS/NAME", help="The EgressPolicy that the CA is for.")
@click.option("--forget", is_flag=True, help="Forget the CA, too: its client gets the policy's other CA, or none.")
@asking_options
def revoke(name: str, policy: str, *, forget: bool, output: str, admin: AdminAddress) -> None:
    """Withdraw the CA NAME at once: its key is deleted, and the intercepted connections of its client are closed.

    From then on tunnels of its client to intercepted hosts are refused, until it has another CA or --forget is given.

    \b
    Examples:
      egressproxy ca revoke sandbox-1 --policy agents/outbound
      egressproxy ca revoke sandbox-1 --policy agents/outbound --forget

    Exit status: 0 done in every worker, 1 there is no such CA, 2 wrong usage, no response or a refusal.
    """
    pairs = [("policy", policy), ("forget" if forget else "revoke", name)]
    found = ask(admin, "/intercept/cas", pairs, method="POST", not_found=1)
    print_found(found, output, lambda: click.echo("done in every worker"))


def _tell_issued(cas: list[dict[str, Any]]) -> None:
    for each in cas:
        said = each["subject"]
        claim = said.pop("claim", None)
        named = [f"{key} {value}" for key, value in said.items()]
        named += [f"claim {claim['name']}={claim['value']}"] if claim else []
        words = (each["name"], each["policy"], each["state"], each["notAfter"], ", ".join(named), each["sha256"])
        click.echo("  ".join(map(printable, words)))
    if not cas:
        click.echo("no CA was made (`egressproxy ca new`)")


def _tell(ca: CaFolder) -> None:
    values = ca.values()
    width = max(map(len, values))
    for key, value in values.items():
        shown = ", ".join(value) or "none" if isinstance(value, list) else value
        click.echo(f"{key:{width}}  {shown}")


def _done(folder: Path, do: Callable[[], CaFolder]) -> CaFolder:
    """What it gives; where it cannot, the process ends with 1, and why."""
    from egressproxy.cli.ca_folder import CaProblem

    try:
        return do()
    except CaProblem as problem:
        raise click.ClickException(str(problem)) from None
    except FileNotFoundError as error:
        raise click.ClickException(f"{error.filename or folder}: there is no such file: `ca init` makes a CA") from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror or error}") from None


_TEXT = """\
{file}
SHA-256 {digest}

The holder of its key can impersonate every server that the CA may sign for: trust it only where needed.

One command, with a gateway of its own:
  egressproxy run --config PATH --ca '{file}' -- CMD

One shell, with what names the gateway:
  eval "$(egressproxy env --ca '{file}' --bundle bundle.pem)"

One shell by hand (most clients take these; they replace the system's roots, so that the file has to have those, too):
  cat /etc/ssl/certs/ca-certificates.crt '{file}' > bundle.pem
  export SSL_CERT_FILE=$PWD/bundle.pem         OpenSSL, Python (ssl, httpx), Go, Ruby, the AI SDKs for Python
  export REQUESTS_CA_BUNDLE=$PWD/bundle.pem    requests, and what is built on it
  export CURL_CA_BUNDLE=$PWD/bundle.pem        curl
  export GIT_SSL_CAINFO=$PWD/bundle.pem        git
  export PIP_CERT=$PWD/bundle.pem              pip
  export AWS_CA_BUNDLE=$PWD/bundle.pem         awscli, boto3
  export CARGO_HTTP_CAINFO=$PWD/bundle.pem     cargo
  export GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=$PWD/bundle.pem
  export NODE_EXTRA_CA_CERTS='{file}'          Node.js, npm (in addition to its own roots)

Java (a copy of its trust store):
  cp "$JAVA_HOME/lib/security/cacerts" cacerts && chmod u+w cacerts
  keytool -importcert -noprompt -alias egressproxy -file '{file}' -keystore cacerts -storepass changeit
  export JAVA_TOOL_OPTIONS="-Djavax.net.ssl.trustStore=$PWD/cacerts"

Debian, Ubuntu, Alpine (the whole machine):
  sudo cp '{file}' /usr/local/share/ca-certificates/egressproxy.crt && sudo update-ca-certificates
  undo: sudo rm /usr/local/share/ca-certificates/egressproxy.crt && sudo update-ca-certificates --fresh

Fedora, RHEL, Amazon Linux (the whole machine):
  sudo cp '{file}' /etc/pki/ca-trust/source/anchors/egressproxy.crt && sudo update-ca-trust
  undo: sudo rm /etc/pki/ca-trust/source/anchors/egressproxy.crt && sudo update-ca-trust

macOS (one user):
  security add-trusted-cert -r trustRoot -k ~/Library/Keychains/login.keychain-db '{file}'

Windows (one user):
  certutil -user -addstore Root "{file}"

Firefox, and Chromium on Linux (one profile):
  certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n egressproxy -i '{file}'

Docker image:
  COPY ca.crt /usr/local/share/ca-certificates/egressproxy.crt
  RUN update-ca-certificates
"""


def instructions(file: Path, digest: str) -> str:
    """For people. `file` is the absolute path of the certificates to trust, `digest` that of the first one."""
    return _TEXT.format(file=file, digest=digest)
