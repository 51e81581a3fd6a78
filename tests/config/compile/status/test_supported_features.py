"""What support.UNSERVED lists is told in status where it is written: the published schema and status say the same."""

from __future__ import annotations

import pytest

from egressproxy.config.compile.status.status_warnings import status_warnings
from egressproxy.config.compile.status.supported_features import UNSERVED
from egressproxy.config.reading.load import load_text
from egressproxy.config.schema import models_by_name
from tests.config.compile.kit import FORWARD, PLAIN, compiled

WRITTEN = {
    "BackendDestination.endpointSelector": """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: other}
spec: {destination: {type: EndpointSelector, endpointSelector: {selectorRef: {name: s}}}}
""",
}


def test_every_unserved_field_is_one_and_is_written_here():
    models = models_by_name()
    for place in UNSERVED:
        name, _, field = place.partition(".")
        assert field in {info.alias or attribute for attribute, info in models[name].model_fields.items()}, place
    assert WRITTEN.keys() == UNSERVED.keys()


@pytest.mark.parametrize("place", sorted(UNSERVED))
def test_a_field_that_is_not_served_is_told_where_it_is_written(place: str):
    text = WRITTEN[place]
    made = compiled(FORWARD, PLAIN, text)
    resources = load_text("\n---\n".join((FORWARD, PLAIN, text)), "config.yaml")
    told = [str(each) for each in status_warnings(resources, made) if "policy" in each.object or "other" in each.object]
    assert any("not supported" in each or " yet" in each for each in told), told
