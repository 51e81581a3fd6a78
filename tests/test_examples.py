"""The examples in config/ and in the README are what `egressproxy check` calls good, without a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from egressproxy.cli import main
from egressproxy.errors import Reason

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "config").glob("*.yaml"))


def check(path: Path) -> str:
    """The output of `egressproxy check --strict`; fails the test where it is not good."""
    done = CliRunner().invoke(main, ["check", "--strict", str(path)])
    assert done.exit_code == 0, done.output or repr(done.exception)
    return done.output


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_good(path: Path):
    assert "listener" in check(path)


def test_all_four_examples_are_there():
    assert {path.name for path in EXAMPLES} >= {
        "minimal.yaml",
        "sidecar.yaml",
        "ai-providers.yaml",
        "reverse-proxy.yaml",
    }


def yaml_blocks() -> list[tuple[str, str]]:
    """Every block of YAML in the documentation that is a whole manifest."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        found += [(f"{page.name}-{number}", block) for number, block in enumerate(blocks) if "kind: Gateway\n" in block]
    return found


@pytest.mark.parametrize(("name", "text"), yaml_blocks(), ids=[name for name, _ in yaml_blocks()])
def test_every_whole_configuration_in_the_documentation_is_good(name: str, text: str, tmp_path: Path):
    path = tmp_path / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    check(path)


@pytest.mark.parametrize("reason", [reason.value for reason in Reason if reason is not Reason.OK])
def test_every_reason_is_explained(reason: str):
    assert f"`{reason}`" in (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/forward-proxy.md", "config/sidecar.yaml"])
def test_proxy_variables_are_given_in_both_spellings(page: str):
    """curl and wget read the lower-case one alone for http://, and go round the gateway without it."""
    exports = "".join(re.findall(r"^#? +export .*$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE))
    capitals = set(re.findall(r"\b(HTTPS?_PROXY)=", exports))
    assert capitals
    assert set(re.findall(r"\b(https?_proxy)=", exports)) == {name.lower() for name in capitals}


def test_the_composed_gateway_shows_its_metrics_to_prometheus_and_its_admin_address_to_nobody():
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    verb, *options = compose["services"]["egressproxy"]["command"]
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert (verb, "--admin" in given) == ("run", False)
    scraped = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"][0]
    assert scraped["static_configs"] == [{"targets": [f"egressproxy:{given['--metrics'].rpartition(':')[2]}"]}]


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
