"""The examples in config/ and in the documentation are what `egressproxy check` calls good, without a warning."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from egressproxy.cli.main import main
from egressproxy.filters import Exchange, Filter, FilterContext, Phase
from egressproxy.filters.builtin import support_level
from egressproxy.filters.catalog import Catalog
from egressproxy.model.message import RequestHead, ResponseHead
from tests.support.pki import Pki, chain

ROOT = Path(__file__).resolve().parents[1]
#: A Gateway among the objects of a block, and not in the text of a ConfigMap.
_GATEWAY = re.compile("^kind: Gateway$", re.MULTILINE)
EXAMPLES = sorted((ROOT / "config").glob("*.yaml"))
#: Their manifests need a package of the reader's: tests/e2e/test_filter_tutorial.py installs it, and checks them.
WITH_A_PACKAGE = {"tutorial.md"}


def check(*paths: Path, options: tuple[str, ...] = ()) -> str:
    """The output of `egressproxy check --strict`; fails the test where it is not good."""
    done = CliRunner().invoke(main, ["check", "--strict", *options, *map(str, paths)])
    assert done.exit_code == 0, done.output or repr(done.exception)
    return done.output


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_good(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    options: tuple[str, ...] = ()
    if path.name == "ai-providers.yaml":  # its reader gives the keys, as its first lines say
        text = path.read_text(encoding="utf-8")
        given = re.findall(r"--secret-env (agents/[a-z-]+:token=([A-Z_]+))", text)
        assert [variable for _, variable in given] == ["OPENAI_KEY", "ANTHROPIC_KEY"]
        for option, variable in given:
            monkeypatch.setenv(variable, "sk-of-the-reader")
            options += ("--secret-env", option)
    if path.name in ("interception.yaml", "recipes.yaml"):  # its reader makes the CA
        options = ("--secret", f"agents/interception-ca={made_ca(tmp_path)}")
    if path.name == "forwarder.yaml":  # the kubelet makes the folder
        for name in ("username", "password"):
            (tmp_path / name).write_text("any")
        options = ("--secret", f"agents/token={tmp_path}")
    if path.name == "demo.yaml":  # its provider is on loopback, without TLS: the one warning
        done = CliRunner().invoke(main, ["check", str(path)])
        assert (done.exit_code, done.output.count("warning: ")) == (0, 1), done.output
        return
    assert "listener" in check(path, options=options)


def made_ca(folder: Path) -> Path:
    """What `egressproxy ca init` leaves, as the example says."""
    made = folder / "egressproxy-ca"
    done = CliRunner().invoke(main, ["ca", "init", str(made), "--permit", "openai.com"])
    assert done.exit_code == 0, done.output
    return made


@pytest.mark.parametrize(("path", "told"), [("/v1/models", "key"), ("/v1/files", "403")])
def test_the_example_of_interception_injects_the_key_where_its_route_says(tmp_path: Path, path: str, told: str):
    words = [
        "explain",
        "GET",
        f"https://api.openai.com{path}",
        "--no-dns",
        "-c",
        str(ROOT / "config/interception.yaml"),
    ]
    done = CliRunner().invoke(main, [*words, "--secret", f"agents/interception-ca={made_ca(tmp_path)}"])
    assert (done.exit_code == 0) is (told == "key"), done.output
    assert told in done.output


def test_all_six_examples_are_there():
    assert {path.name for path in EXAMPLES} >= {
        "minimal.yaml",
        "sidecar.yaml",
        "ai-providers.yaml",
        "ai-gateway.yaml",
        "reverse-proxy.yaml",
        "interception.yaml",
    }


def unfolded(block: str) -> str:
    """A block as the gateway is given it: manifests in ConfigMaps that a pod mounts, and the Secrets beside them."""
    if "kind: Deployment\n" not in block:
        return block
    parts = [yaml.safe_load(part) for part in block.split("\n---\n")]
    inside = [
        text for part in parts if part["kind"] == "ConfigMap" for name, text in part["data"].items() if "." in name
    ]
    return "\n---\n".join([*inside, *(yaml.safe_dump(part) for part in parts if part["kind"] == "Secret")])


def yaml_blocks() -> list[tuple[str, str]]:
    """Every block of YAML in the documentation that is a whole manifest."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        found += [
            (f"{page.name}-{number}", block)
            for number, block in enumerate(map(unfolded, blocks))
            if _GATEWAY.search(block) and page.name not in WITH_A_PACKAGE
        ]
    return found


def test_words_that_yaml_reads_as_truth_values_are_quoted_in_the_documentation():
    word = re.compile(r"^ *(?:- )?[A-Za-z]+: +(?:Off|On|Yes|No)\b", re.MULTILINE)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [
        (page.name, block)
        for page in pages
        for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ]
    assert [(name, found[0]) for name, block in blocks if (found := word.findall(block))] == []


@pytest.mark.parametrize(("name", "text"), yaml_blocks(), ids=[name for name, _ in yaml_blocks()])
def test_every_whole_configuration_in_the_documentation_is_good(name: str, text: str, tmp_path: Path):
    path = tmp_path / f"{name}.yaml"
    path.write_text(text + certificates(text), encoding="utf-8")
    check(path)


def certificates(text: str) -> str:
    """The Secrets of a page's listeners, which a reader makes with openssl."""
    made = ""
    for gateway in [one for one in yaml.safe_load_all(text) if one["kind"] == "Gateway"]:
        for listener in gateway["spec"]["listeners"]:
            for ref in listener.get("tls", {}).get("certificateRefs", ()):
                leaf = Pki().issue(listener["hostname"])
                data = {"tls.crt": chain(leaf), "tls.key": leaf.private_key_pem.bytes().decode()}
                meta = {"name": ref["name"], "namespace": gateway["metadata"]["namespace"]}
                secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls"}
                made += "---\n" + yaml.safe_dump({**secret, "metadata": meta, "stringData": data})
    return made


def test_the_example_of_a_filter_is_good_beside_the_gateway_of_the_first_steps(tmp_path: Path):
    path = tmp_path / "first.yaml"
    path.write_text(next(text for name, text in yaml_blocks() if name.startswith("start.md")), encoding="utf-8")
    check(path, ROOT / "config" / "filters")


def fragments() -> list[tuple[str, str]]:
    """Every block of YAML in the documentation that has whole objects, and no Gateway that they belong to."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        whole = [block for block in blocks if block.startswith("apiVersion: ") and not _GATEWAY.search(unfolded(block))]
        found += [(f"{page.name}-{number}", block) for number, block in enumerate(whole)]
    return found


@pytest.mark.parametrize(("name", "text"), fragments(), ids=[name for name, _ in fragments()])
def test_every_object_in_the_documentation_can_be_taken(name: str, text: str, tmp_path: Path):
    path = tmp_path / f"{name}.yaml"
    one_of_ours = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: agents}\n"  # some blocks are for others alone
    path.write_text(text + one_of_ours, encoding="utf-8")
    done = CliRunner().invoke(main, ["check", "--allow-unserved", str(path)])
    assert done.exit_code == 0, done.output or repr(done.exception)


def scripts() -> dict[str, str]:
    """What docs/cli.md has pipelines run."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(each) for each in re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]
    github = next(each[0]["run"] for each in blocks if isinstance(each, list) and "run" in each[0])
    gitlab = next(each["egress-policies"] for each in blocks if "egress-policies" in each)
    return {"github": github, "gitlab": "\n".join(gitlab["after_script"] + gitlab["script"])}


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_what_pipelines_run_passes_what_is_good_and_names_the_lines_of_what_is_not(name: str, tmp_path: Path):
    def run() -> subprocess.CompletedProcess[str]:
        command = f'egressproxy() {{ "{sys.executable}" -m egressproxy "$@"; }}\n{scripts()[name]}'
        return subprocess.run(["bash", "-ec", command], cwd=tmp_path, capture_output=True, text=True)

    path = tmp_path / "policies" / "a.yaml"
    path.parent.mkdir()
    path.write_text((ROOT / "config" / "minimal.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    assert run().returncode == 0
    path.write_text(
        path.read_text(encoding="utf-8").replace("name: egress\n  dest", "name: x\n  dest"), encoding="utf-8"
    )
    done = run()
    assert done.returncode == 1
    if name == "github":
        assert done.stdout.startswith("::error file=policies/a.yaml,line="), done
        assert ",title=TargetNotFound::EgressPolicy default/default: " in done.stdout
    else:
        (found,) = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
        assert (found["check_name"], found["severity"]) == ("TargetNotFound", "major")
        assert (found["location"]["path"], found["location"]["lines"]["begin"] > 1) == ("policies/a.yaml", True)


@pytest.mark.parametrize("page", ["docs/start.md", "docs/forward-proxy.md", "config/sidecar.yaml"])
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


def test_the_composed_client_has_no_way_out_but_the_gateway_and_prometheus_has_the_alerts():
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    (network,) = compose["services"]["demo"]["networks"]
    assert compose["networks"][network] == {"internal": True}
    assert network in compose["services"]["egressproxy"]["networks"]
    for service in compose["services"].values():
        for source in (each.split(":")[0] for each in service["volumes"]):
            assert (ROOT / "docker" / source).exists(), source
    targets = [each.split(":")[1] for each in compose["services"]["prometheus"]["volumes"]]
    (rules,) = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text(encoding="utf-8"))["rule_files"]
    assert f"/etc/prometheus/{rules}" in targets


def test_the_composed_gateway_reads_a_folder_whose_files_can_be_replaced(tmp_path: Path):
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["egressproxy"]
    (volume,) = service["volumes"]
    source, target, _ = volume.split(":")
    folder = ROOT / "docker" / source
    assert folder.is_dir(), "a file that is mounted alone never shows what a rename puts in its place"
    assert target == service["command"][service["command"].index("--config") + 1]
    check(folder)
    (manifests,) = folder.iterdir()
    without = [
        re.sub(r"^#.*\n", "", each.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for each in (manifests, ROOT / "config" / "minimal.yaml")
    ]
    assert without[0] == without[1]


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("type_name", Catalog().names())
def test_every_built_in_filter_has_a_page_and_a_row_in_the_index(type_name: str):
    """The row has what the catalogue says; the page has the name of the type, and a manifest with it."""
    kind = type_name.removeprefix("egressproxy.io/").removesuffix(":v1")
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z]{2})|QoS|[A-Z][a-z]+", kind)
    page = f"filters/{'-'.join(words).lower()}.md"
    assert f"type: {type_name}" in (ROOT / "docs" / page).read_text(encoding="utf-8")
    rows = (ROOT / "docs" / "filters.md").read_text(encoding="utf-8").splitlines()
    (row,) = [row for row in rows if row.startswith(f"| [`{kind}`]({page})")]
    declared = Catalog().get(type_name)
    assert declared is not None
    phases, support, does = [cell.strip() for cell in row.split("|")[2:5]]
    in_order = ", ".join(f"`{phase.value}`" for phase in Phase if phase in declared.phases)
    assert phases == ("every phase" if declared.phases == set(Phase) else in_order)
    assert (support, does) == (support_level(type_name), declared.summary)


FILTER_API = {
    "Exchange": (Exchange, r"^\| attribute \| type \| holds \|\n\|---\|---\|---\|\n((?:\|.*\n)+)"),
    "RequestHead": (RequestHead, r"^\| `x\.request` .*\n\|---\|---\|---\|\n((?:\|.*\n)+)"),
    "ResponseHead": (ResponseHead, r"^\| `x\.response` .*\n\|---\|---\|---\|\n((?:\|.*\n)+)"),
    "Filter": (Filter, r"^\| (?:method \| is called|class attribute) .*\n\|---\|---\|---\|\n((?:\|.*\n)+)"),
    "FilterContext": (FilterContext, r"^## FilterContext\n\n\| attribute .*\n\|---\|---\|\n((?:\|.*\n)+)"),
}


@pytest.mark.parametrize("name", FILTER_API)
def test_the_filter_api_page_names_what_is_there(name: str):
    kind, table = FILTER_API[name]
    page = (ROOT / "docs" / "filter-api.md").read_text(encoding="utf-8")
    rows = "".join(re.findall(table, page, re.MULTILINE))
    named = [word for row in rows.splitlines() for word in re.findall(r"`(\w+)", row.split("|")[1])]
    assert len(named) >= 3
    assert [word for word in named if not hasattr(kind, word)] == []


def test_the_filter_api_page_leaves_out_no_method():
    page = (ROOT / "docs" / "filter-api.md").read_text(encoding="utf-8")
    methods = [name for name in vars(Filter) if not name.startswith("_")]
    assert [name for name in methods if f"`{name}" not in page] == []
