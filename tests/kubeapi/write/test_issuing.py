"""Requests for CAs of single clients: what is said of a subject that is not valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from egressproxy.config.reading.load import load
from egressproxy.kubeapi.write.issuing import IssuingQuery, _answer
from egressproxy.kubeapi.write.write import WriteRefused
from tests.support import manifests as m


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ({}, "a subject names no client: write namespace, group, claim or identity"),
        ({"serviceAccount": "a"}, "serviceAccount needs its namespace: write namespace"),
        ({"claim": {"name": "team", "value": ""}}, "claim.value: the text is empty: write a value"),
        ({"claim": {"name": "", "value": "x"}}, "claim.name: the text is empty: write a value"),
        ({"group": ""}, "group: the text is empty: write a value"),
    ],
)
def test_a_subject_that_is_not_valid_is_told_in_the_words_of_manifests(
    tmp_path: Path, subject: dict[str, object], message: str
):
    objects = m.policy(["a.example"], intercept={"hostnames": ["a.example"], "issuing": {"maxLifetime": "1h"}})
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(objects))
    query = IssuingQuery("new", "agents/default", "x", json.dumps(subject))
    with pytest.raises(WriteRefused) as refused:
        _answer(load([tmp_path]), query)
    assert str(refused.value).startswith(message)
