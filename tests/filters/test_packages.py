import sys

import pytest

from egressproxy.filters import Exchange, packages
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain, run
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.filters.packages import SWITCH
from egressproxy.ir.policy import ExtensionIR
from tests.config.compile.kit import PLAIN, REVERSE, ROUTE, compiled, of_policy, policy, rule

TYPE = "acme.example.com/Stamp:v1"
CODE = """
from dataclasses import dataclass
from egressproxy.filters import Filter, FilterConfig, FilterType, Phase

@dataclass(frozen=True, slots=True)
class StampConfig(FilterConfig):
    team: str

class Stamp(Filter):
    def __init__(self, context):
        self.team = context.config.team
        if self.team == "broken": raise KeyError("sesame")
    def request_headers(self, x): x.note("team", self.team)

HEADERS = frozenset((Phase.REQUEST_HEADERS,))
STAMP = FilterType("acme.example.com/Stamp:v1", HEADERS, StampConfig, Stamp, summary="Stamps.")
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package: its metadata and its one module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(code=CODE, name="acme_filters", entry=f"{TYPE} = acme_filters:STAMP"):
        (tmp_path / f"{name}.py").write_text(code)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[egressproxy.filters]\n{entry}\n")
        monkeypatch.delitem(sys.modules, name, raising=False)

    packages.installed.cache_clear()
    yield installed
    sys.modules.pop("acme_filters", None)
    packages.installed.cache_clear()


def used(config="{team: research}"):
    return policy(f"extensions: [{{name: mine, type: '{TYPE}', phase: request-headers, config: {config}}}]")


def test_a_type_of_an_installed_package_runs(install):
    install()
    made = compiled(REVERSE, PLAIN, ROUTE, used())
    (spec,) = rule(made).extensions
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    run(compile_chain([spec], FilterInstances(Catalog()).place).request_headers, x)
    assert x.notes == {"team": "research"}


def test_it_is_listed_with_its_package_and_not_imported_for_that_name_alone(install):
    install()
    catalog = Catalog()
    assert TYPE in catalog.names()
    assert "acme_filters" not in sys.modules
    described = catalog.describe()[TYPE]
    assert (described["source"], described["support"]) == ("package acme-filters 1.0", "implementation-specific")
    assert (described["phases"], described["summary"]) == (["request-headers"], "Stamps.")
    assert described["config"]["required"] == ["team"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"code": "import no_such_module_of_acme"}, "ModuleNotFoundError: No module named 'no_such_module_of_acme'"),
        ({"code": "raise SystemExit(3)"}, "SystemExit"),
        ({"code": "def"}, "SyntaxError"),
        ({"code": "STAMP = 3"}, "acme_filters:STAMP is int, not an egressproxy.filters.FilterType"),
        ({"code": CODE.replace("Stamp:v1", "Other:v1")}, "acme_filters:STAMP has the name acme.example.com/Other:v1"),
        ({"code": CODE.replace("(Phase.REQUEST_HEADERS,)", "()")}, "acme_filters:STAMP names no phases"),
        ({"code": CODE.replace("team: str", "team: 'NoSuchType'")}, "its config cannot be read (PydanticUserError)"),
        ({"code": CODE.replace("team: str", "team: str\n    def __post_init__(self): 1 / 0")}, "(ZeroDivisionError)"),
    ],
)
def test_a_broken_package_closes_what_names_its_type_and_refuses_nothing_else(install, change, told):
    install(**change)
    made = compiled(REVERSE, PLAIN, ROUTE, used())
    status, reason, message = of_policy(made, "Degraded")
    assert (status, reason) == ("True", "UnsupportedExtensionType")
    assert f"the type {TYPE}, which cannot be used" in message
    assert "package acme-filters 1.0: " in message
    assert told in message
    assert not rule(made).extensions or not rule(made).extensions[0].is_known
    if "cannot be read" not in message:
        assert told in Catalog().describe()[TYPE]["problem"]


@pytest.mark.parametrize("name", ["egressproxy.io/Stamp:v1", "a.gateway.networking.k8s.io/Stamp:v1", "Stamp", "a/B:v1"])
def test_a_package_has_types_under_a_domain_of_its_own_alone(install, name):
    install(code=CODE.replace(TYPE, name), entry=f"{name} = acme_filters:STAMP")
    assert Catalog().get(name) is None
    assert "domain" in Catalog().why_unusable(name)


def test_a_built_in_type_is_not_redefined(install):
    name = "egressproxy.io/HeaderPolicy:v1"
    install(code=CODE.replace(TYPE, name), entry=f"{name} = acme_filters:STAMP")
    catalog = Catalog()
    assert catalog.get(name).package == ""
    assert catalog.describe()[name]["source"] == "built-in"


@pytest.mark.parametrize(
    ("value", "is_there"),
    [("none", False), ("", False), ("other", False), ("acme-filters", True), ("other, Acme_Filters", True)],
)
def test_packages_may_be_switched_off(install, monkeypatch, value, is_there):
    install()
    monkeypatch.setenv(SWITCH, value)
    catalog = Catalog()
    assert (catalog.get(TYPE) is not None) is is_there
    assert ("switches its package off" in catalog.why_unusable(TYPE)) is not is_there
    assert ("acme_filters" in sys.modules) is is_there


def test_of_two_packages_with_one_type_the_first_by_name_has_it(install):
    install(name="zzz_filters", entry=f"{TYPE} = zzz_filters:STAMP")
    install()
    assert Catalog().get(TYPE).package == "acme-filters 1.0"


def test_what_building_it_raises_is_told_by_its_type_and_place_since_its_text_may_be_a_secret(install):
    install()
    (spec,) = rule(compiled(REVERSE, PLAIN, ROUTE, used("{team: broken}"))).extensions
    with pytest.raises(FilterBuildError) as caught:
        FilterInstances(Catalog()).place(spec)
    assert "acme_filters.py:12: KeyError while the filter was built" in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_type_that_the_loader_knew_and_this_process_does_not_is_told(install):
    with pytest.raises(FilterBuildError, match=f"unknown type {TYPE}"):
        FilterInstances(Catalog()).place(ExtensionIR("a", TYPE, "request-headers"))


def test_the_published_catalogue_imports_no_package_that_nothing_needs(install):
    install()
    listed = Catalog().describe(imports=False)[TYPE]
    assert "acme_filters" not in sys.modules
    assert (listed["source"], "config" in listed) == ("package acme-filters 1.0", False)
    Catalog().get(TYPE)
    assert "config" in Catalog().describe(imports=False)[TYPE]
