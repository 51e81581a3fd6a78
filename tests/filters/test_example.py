"""The filter of docs/filters.md, as a user would test it: built from its manifest, and run as the gateway runs it."""

from pathlib import Path

import pytest
import yaml

from egressproxy.filters.testing import FilterHarness, exchange

FOLDER = Path(__file__).parents[2] / "config" / "filters"


@pytest.fixture
def stamp():
    policy = yaml.safe_load((FOLDER / "stamp.yaml").read_text())
    (extension,) = policy["spec"]["extensions"]
    return FilterHarness(
        extension["config"], phase=extension["phase"], folder=FOLDER, source="EgressPolicy agents/stamp"
    )


def asked(**headers):
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    return exchange("GET", "https://api.example.com/v1/models", said)


def test_a_known_team_is_stamped_on_the_request_and_on_the_response(stamp):
    result = stamp.run(asked(X_Team="research", X_Cost_Center="forged"))
    assert result.request.fields.get_all(b"x-cost-center") == [b"4711"]
    assert result.response.fields.get(b"x-paid-by") == b"4711"


def test_without_a_team_nobody_pays_and_nothing_is_forged(stamp):
    result = stamp.run(asked(X_Cost_Center="forged"))
    assert result.request.fields.get(b"x-cost-center") is None
    assert result.response.fields.get(b"x-paid-by") is None


def test_an_unknown_team_is_refused_by_the_policy_that_placed_the_filter(stamp):
    result = stamp.run(asked(X_Team="strangers"))
    assert result.status == 403
    assert result.error.message == "the team in X-Team is not known"
    assert result.error.rule == "EgressPolicy agents/stamp"
    assert "data, research" in result.error.remedy


def test_a_tunnel_is_left_alone(stamp):
    result = stamp.run(exchange("CONNECT", "api.example.com:443", {"X-Team": "strangers"}))
    assert result.error is None


def test_the_documentation_shows_the_file_as_it_is():
    document = (FOLDER.parents[1] / "docs" / "filters.md").read_text()
    code = (FOLDER / "stamp.py").read_text().partition("from pydantic")[2]
    assert "from pydantic" + code in document
    manifest = yaml.safe_load((FOLDER / "stamp.yaml").read_text())
    blocks = [block.partition("```")[0] for block in document.split("```yaml\n")[1:]]
    assert manifest in [yaml.safe_load(block) for block in blocks]
