"""The filter of docs/filters.md, as a user would test it: built from its manifest, and run as the gateway runs it."""

import json
from pathlib import Path

import pytest
import yaml

from egressproxy.filters import Exchange, Rejected
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain, run
from egressproxy.filters.instances import FilterInstances
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead

FOLDER = Path(__file__).parents[2] / "config" / "filters"


@pytest.fixture
def chain():
    extension = yaml.safe_load((FOLDER / "stamp.yaml").read_text())["spec"]["extensions"][0]
    spec = ExtensionIR(
        extension["name"], extension["type"], extension["phase"], extension["priority"],
        config=json.dumps(extension["config"]), source="EgressPolicy agents/stamp", folder=str(FOLDER),
    )  # fmt: skip
    return compile_chain([spec], FilterInstances(Catalog()).place)


def exchange(team=None, *, is_tunnel=False):
    x = Exchange("127.0.0.1:1", "agents/egress", "proxy", 0.0)
    x.is_tunnel = is_tunnel
    said = [] if team is None else [(b"X-Team", team)]
    x.request = RequestHead(b"GET", b"/", Fields.of([(b"X-Cost-Center", b"forged"), *said]))
    x.response = ResponseHead(200, b"OK", Fields())
    return x


def test_a_known_team_is_stamped_on_the_request_and_on_the_answer(chain):
    x = exchange(b"research")
    assert run(chain.request_headers, x) is None
    assert x.request.fields.get_all(b"x-cost-center") == [b"4711"]
    assert run(chain.response_headers, x) is None
    assert x.response.fields.get(b"x-paid-by") == b"4711"


def test_without_a_team_nobody_pays_and_nothing_is_forged(chain):
    x = exchange()
    assert run(chain.request_headers, x) is None
    assert run(chain.response_headers, x) is None
    assert x.request.fields.get(b"x-cost-center") is None
    assert x.response.fields.get(b"x-paid-by") is None


def test_an_unknown_team_is_refused_by_the_policy_that_placed_the_filter(chain):
    with pytest.raises(Rejected, match="not known") as caught:
        run(chain.request_headers, exchange(b"strangers"))
    assert caught.value.rule == "EgressPolicy agents/stamp"
    assert "data, research" in caught.value.remedy


def test_a_tunnel_is_left_alone(chain):
    assert run(chain.request_headers, exchange(b"strangers", is_tunnel=True)) is None


def test_the_test_in_the_documentation_is_one(tmp_path, monkeypatch):
    document = (FOLDER.parents[1] / "docs" / "filter-api.md").read_text()
    blocks = (block.partition("```")[0] for block in document.split("```python\n")[1:])
    (shown,) = (code for code in blocks if "def test_" in code)
    monkeypatch.chdir(FOLDER.parents[1])
    names: dict[str, object] = {}
    exec(shown, names)
    tests = [made for name, made in names.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


def test_the_documentation_shows_the_file_as_it_is():
    document = (FOLDER.parents[1] / "docs" / "filters.md").read_text()
    code = (FOLDER / "stamp.py").read_text().partition("from pydantic")[2]
    assert "from pydantic" + code in document
    manifest = yaml.safe_load((FOLDER / "stamp.yaml").read_text())
    blocks = [block.partition("```")[0] for block in document.split("```yaml\n")[1:]]
    assert manifest in [yaml.safe_load(block) for block in blocks]
