import pytest

from benchmarks.world import HOSTS, World, hosts
from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.filters.catalog import Catalog
from tests.support.compiling import compile_valid

PORTS = {name: 20000 + at for at, name in enumerate(("FORWARD", "REVERSE", "ADMIN", "TUNNEL", "WORKERS"))}
TEMPLATES = (
    "egressproxy.yaml", "egressproxy-opened.yaml", "envoy.yaml", "haproxy.cfg", "nginx.conf", "squid.conf",
    "tinyproxy.conf", "litellm.yaml", "upstream.conf",
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"), None)


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_mark_of_a_template_is_left(world, tmp_path, template):
    text = world.render(template, tmp_path, PORTS).read_text()
    assert "@for" not in text
    assert "@end@" not in text
    assert "127.0.0.1" in text


def test_every_name_has_its_route(world, tmp_path):
    text = world.render("envoy.yaml", tmp_path, PORTS, hosts(10)).read_text()
    assert text.count('domains: ["h0') == 2 * 10


@pytest.mark.parametrize(
    ("template", "routes"), [("egressproxy.yaml", 2 * len(HOSTS) + 2), ("egressproxy-opened.yaml", 1)]
)
def test_our_own_configuration_is_accepted_without_a_warning_and_holds_the_whole_policy(
    world, tmp_path, template, routes
):
    text = world.render(template, tmp_path, PORTS).read_text()
    compiled = compile_valid(load_text(text, "bench.yaml"), Catalog(), Defaults(("127.0.0.1",)))
    assert text.count("\nkind: HTTPRoute\n") == routes
    assert not compiled.warnings
    for word in ("maxBodyBytes", "connections:", "requests:", "CredentialInjector", "HeaderPolicy"):
        assert word in text


def test_only_the_workload_of_opened_tunnels_opens_any(world, tmp_path):
    opening = [name for name in TEMPLATES if "intercept:" in world.render(name, tmp_path, PORTS).read_text()]
    assert opening == ["egressproxy-opened.yaml"]
