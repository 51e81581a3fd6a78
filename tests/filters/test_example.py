"""The filter of docs/filters.md, as a user would test it: built from its manifest, and run as the gateway runs it."""

import json
from pathlib import Path

import pytest
import yaml

from egressproxy.filters import Exchange, Rejected
from egressproxy.filters.catalog import Catalog, FilterInstances
from egressproxy.filters.chain import compile_chain, run
from egressproxy.model.exchange import Identity
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.spec.policy import ExtensionSpec

FOLDER = Path(__file__).parents[2] / "config" / "filters"


@pytest.fixture
def chain():
    extension = yaml.safe_load((FOLDER / "stamp.yaml").read_text())["spec"]["extensions"][0]
    spec = ExtensionSpec(
        extension["name"], extension["type"], extension["phase"], extension["priority"],
        config=json.dumps(extension["config"]), source="EgressPolicy agents/stamp", folder=str(FOLDER),
    )  # fmt: skip
    return compile_chain([spec], FilterInstances(Catalog()).place)


def exchange(namespace):
    x = Exchange("127.0.0.1:1", "agents/egress", "proxy", 0.0)
    x.identity = Identity(namespace)
    x.request = RequestHead(b"GET", b"/", Fields.of([(b"X-Team", b"forged")]))
    x.response = ResponseHead(200, b"OK", Fields())
    return x


def test_a_known_team_is_stamped_on_the_request_and_on_the_answer(chain):
    x = exchange("agents")
    assert run(chain.request_headers, x) is None
    assert x.request.fields.get_all(b"x-team") == [b"research"]
    assert run(chain.response_headers, x) is None
    assert x.response.fields.get(b"x-served-for") == b"research"


def test_an_unknown_team_is_refused_by_the_policy_that_placed_the_filter(chain):
    with pytest.raises(Rejected, match="namespace strangers belongs to no team") as caught:
        run(chain.request_headers, exchange("strangers"))
    assert caught.value.rule == "EgressPolicy agents/stamp"


def test_the_documentation_shows_the_file_as_it_is():
    document = (FOLDER.parents[1] / "docs" / "filters.md").read_text()
    code = (FOLDER / "stamp.py").read_text().partition("from pydantic")[2]
    assert "from pydantic" + code in document
    manifest = yaml.safe_load((FOLDER / "stamp.yaml").read_text())
    blocks = [block.partition("```")[0] for block in document.split("```yaml\n")[1:]]
    assert manifest in [yaml.safe_load(block) for block in blocks]
