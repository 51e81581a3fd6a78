"""The recipes, with the tools that they are for: what reads is served, and what writes is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.clients.test_interception import CA_KEY, CA_PEM
from tests.clients.test_table import PACKAGE, npm_pack, pip_download
from tests.clients.world import Require, Way, World
from tests.e2e.world import tls_secret
from tests.support import manifests as m

RECIPES = Path(__file__).parents[2] / "config" / "recipes.yaml"
#: The host of each recipe here.
HOSTS = {
    "git-without-push": "git.egress.test",
    "github-graphql-queries": "api.egress.test",
    "images-without-push": "images.egress.test",
    "python-packages": "pypi.egress.test",
    "npm-packages": "npm.egress.test",
}
WHO = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "Test")
WHO |= dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "test@example.test")


class RecipesWorld(World):
    """The routes of the file, with the names of this world."""

    more_names = tuple(HOSTS.values())

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        assert self.pki.ca_file is not None
        self.pki.ca_file.write_text(CA_PEM, encoding="ascii")

    def manifests(self) -> list[m.Manifest]:
        recipes = list(yaml.safe_load_all(RECIPES.read_text(encoding="utf-8")))
        kept = []
        for each in recipes:
            name, spec = each["metadata"]["name"], each["spec"]
            if each["kind"] == "Gateway":
                spec["listeners"] = [m.forward_listener(self.forward_port)]
            elif name == "default":
                spec["intercept"]["hostnames"] = list(HOSTS.values())
                spec["dns"] = {"servers": [self.dns.address]}
                spec["addresses"] = {"allow": [{"cidrs": ["127.0.0.0/8"]}]}
                spec["tls"] = {"caBundleRefs": [{"kind": "ConfigMap", "name": "ca"}]}
            elif each["kind"] == "HTTPRoute":
                spec["hostnames"] = [HOSTS[name]]
            elif name == "graphql-queries":
                spec["extensions"][0]["config"]["path"] = "graphql_queries.py"
            kept.append(each)
        ca = m.config_map("ca", {"ca.crt": self.pki.ca_pem})
        return [*kept, ca, tls_secret("interception-ca", CA_PEM, CA_KEY.reveal())]

    def add_files(self, folder: Path) -> None:
        shutil.copy(RECIPES.parent / "filters" / "graphql_queries.py", folder)

    def on(self, recipe: str, path: str) -> str:
        return self.origin.url(HOSTS[recipe], path, tls=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecipesWorld]:
    made = RecipesWorld(tmp_path_factory.mktemp("recipes"))
    yield made
    made.close()


def test_git_clones_and_does_not_push(world: RecipesWorld, require: Require, tmp_path: Path):
    require("git")
    url = world.on("git-without-push", "/git/project.git")
    cloned = world.run(["git", "clone", "--quiet", url, "work"], Way.TLS, folder=tmp_path)
    assert cloned.status == 0, cloned.output
    commit = ["git", "-C", "work", "commit", "--quiet", "--allow-empty", "--message", "Mine"]
    assert world.run(commit, Way.TLS, folder=tmp_path, **WHO).status == 0
    since = world.gateway.mark()
    pushed = world.run(["git", "-C", "work", "push", "--quiet"], Way.TLS, folder=tmp_path)
    assert pushed.status != 0
    assert "403" in pushed.output
    world.gateway.wait_for_record(since=since, kind="request", path="/git/project.git/info/refs", status=403)
    assert not world.origin.requests("/git/project.git/git-receive-pack")


def status_of(world: RecipesWorld, url: str, *options: str) -> int:
    command = ["curl", "--silent", "--max-time", "30", "--output", "/dev/null", "--write-out", "%{http_code}"]
    return int(world.run([*command, *options, url], Way.TLS).output)


@pytest.mark.parametrize(
    ("recipe", "method", "path", "status"),
    [
        ("images-without-push", "GET", "/v2/library/alpine/manifests/latest", 404),  # of the origin, which has none
        ("images-without-push", "HEAD", "/v2/", 404),
        ("images-without-push", "POST", "/v2/library/alpine/blobs/uploads/", 403),
        ("images-without-push", "PUT", "/v2/library/alpine/manifests/latest", 403),
        ("images-without-push", "DELETE", "/v2/library/alpine/manifests/latest", 403),
        ("npm-packages", "PUT", "/tiny-parcel", 403),
        ("npm-packages", "POST", "/-/npm/v1/security/audits/quick", 404),
        ("python-packages", "POST", "/legacy/", 403),
        ("git-without-push", "POST", "/git/project.git/git-receive-pack", 403),
        ("git-without-push", "GET", "/git/project.git/info/refs?service=git-receive-pack", 403),
        ("git-without-push", "GET", "/git/project.git/info/refs?service=git-receive-pack&service=git-upload-pack", 403),
    ],
)
def test_methods(world: RecipesWorld, require: Require, recipe: str, method: str, path: str, status: int):
    require("curl")
    how = ["--head"] if method == "HEAD" else ["--request", method]
    assert status_of(world, world.on(recipe, path), *how) == status


def test_pip_and_npm_install(world: RecipesWorld, require: Require, tmp_path: Path):
    require("python:pip")
    require("npm")
    got = world.run(
        pip_download(world.on("python-packages", "/simple/"), tmp_path), Way.TLS, PIP_CONFIG_FILE="/dev/null"
    )
    assert "Saved" in got.output, got.output
    packed = world.run(npm_pack(world.on("npm-packages", "/npm/"), tmp_path), Way.TLS)
    assert f"{PACKAGE}-1.0.0.tgz" in packed.output, packed.output


@pytest.mark.parametrize(("document", "status"), [("{ viewer { login } }", 404), ("mutation { a }", 403)])
def test_graphql(world: RecipesWorld, require: Require, document: str, status: int):
    require("curl")
    url = world.on("github-graphql-queries", "/graphql")
    assert status_of(world, url, "--json", json.dumps({"query": document})) == status
