"""Draws docs/images/terminal.svg from a real run: `python docs/images/make.py`, with the `dev` and `clients` extras.

The gateway runs config/minimal.yaml, and a policy that leads names to an origin on this machine. Ports 80, 443 and 3128
are needed, so it has to be run as root (or in a container), and jq. Nothing leaves the machine.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import manifests  # noqa: E402
from tests.support.name_server import NameServer  # noqa: E402
from tests.support.origins import basic  # noqa: E402
from tests.support.origins.server import OriginServer  # noqa: E402
from tests.support.pki import Pki  # noqa: E402
from tests.support.process import GatewayProcess  # noqa: E402

EXAMPLE = ROOT / "config" / "minimal.yaml"
PROXY = "http://127.0.0.1:3128"
WIDTH = 110

#: Typed into bash in a folder that holds minimal.yaml and, once something was asked for, access.log.
COMMANDS = (
    "egressproxy check minimal.yaml",
    f"curl -x {PROXY} https://api.github.com/hello",
    f"curl -x {PROXY} https://example.com/",
    f"curl -x {PROXY} --include http://example.com/ | head -n 1",
    "jq -r '[.method, .authority, .status, .reason, .rule] | @tsv' access.log",
)


def draw(path: Path) -> None:
    """Run the commands, and export them with what they print."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pki = Pki(folder)
        example = EXAMPLE.read_text(encoding="utf-8")
        (folder / EXAMPLE.name).write_text(example, encoding="utf-8")
        origin = OriginServer([basic.routes()], pki.server_context("api.github.com"))
        with origin, NameServer({"*": [origin.address]}) as names:
            local = manifests.policy(
                name="local", namespace="default", target="egress", dns=names.address, cidrs=["127.0.0.0/8"]
            )
            with GatewayProcess(folder / "gateway", [*yaml.safe_load_all(example), local]) as gateway:
                (folder / "access.log").symlink_to(gateway.access_log_path)
                for command in COMMANDS:
                    if "access.log" in command:  # lines are written ten times a second
                        gateway.wait_for_record(method="GET", status=403)
                    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
                    console.print(run(command, folder) + "\n", markup=False, highlight=False)
    # The fonts of the export come from a server of somebody else; the reader's own will do.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="egressproxy"), flags=re.DOTALL)
    path.write_text("".join(f"{line.rstrip()}\n" for line in drawn.splitlines()), encoding="utf-8")


def run(command: str, folder: Path) -> str:
    """What a command prints, errors included. curl trusts the authority of this run, and shows no progress."""
    programs = shlex.quote(str(Path(sys.executable).parent))
    text = f'PATH={programs}:$PATH; curl() {{ command curl --silent --show-error "$@"; }}; {command}'
    environment = {"PATH": "/usr/bin:/bin", "CURL_CA_BUNDLE": str(folder / "ca.crt"), "HOME": str(folder)}
    done = subprocess.run(
        ["/bin/bash", "-c", text],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    return done.stdout.strip().replace("\r", "")


if __name__ == "__main__":
    draw(ROOT / "docs" / "images" / "terminal.svg")
