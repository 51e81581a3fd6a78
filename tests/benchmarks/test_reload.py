"""What the measure of reloads asks for and tells."""

import json

from benchmarks.reload.__main__ import summary
from benchmarks.reload.subject import policy
from benchmarks.reload.writes import objects
from egressproxy.config.reading.load import load_text
from egressproxy.processes.loader.compilation import compiled


def test_a_summary_has_the_middle_and_the_worst():
    text = summary([each / 100 for each in range(1, 101)])
    assert text == "median 0.510 s, p95 0.960 s, worst 1.000 s, of 100"


def test_the_objects_are_a_configuration_that_is_accepted():
    made = objects(8080, 50)
    assert len(made) == 50
    resources = load_text(
        "\n---\n".join(
            json.dumps(each) for each in [*made, {**policy(["d0.reload.example"], 3), "metadata": {"name": "p"}}]
        )
    )
    statuses = compiled(resources, ("127.0.0.1",)).statuses
    refused = [
        (key, each)
        for key, status in statuses.items()
        for each in status.get("conditions", ())
        if each["type"] == "Accepted" and each["status"] != "True"
    ]
    assert refused == []
