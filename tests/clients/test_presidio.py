"""PIIDetector with a real analyzer of Presidio behind it.

presidio-analyzer takes 400 MB with spaCy: it is no part of the extra `clients`. These tests run where it is installed,
in the interpreter that EGRESSPROXY_PRESIDIO_PYTHON names. Default: that of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_table import PROGRAMS
from tests.e2e.test_mcp import accepts
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.origins.providers import Provider
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.timeout(180)
PYTHON = os.environ.get("EGRESSPROXY_PRESIDIO_PYTHON", sys.executable)
PERSON, COIN = "Zoë Quimby", "1BoatSLRHtKNngkdXEeobR76b53LETtpyT"


class World:
    """A gateway for each language, in front of one provider, and one analyzer that knows English."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.provider = Provider()
        origin = stack.enter_context(OriginServer([self.provider.routes()], Pki().server_context("127.0.0.1")))
        port = free_port()
        self._said = folder / "analyzer.log"
        with self._said.open("w") as log:
            command = [PYTHON, str(PROGRAMS / "presidio_service.py"), str(port)]
            stack.callback(stack.enter_context(subprocess.Popen(command, stdout=log)).terminate)
        wait_until(lambda: accepts(port), "the analyzer does not listen")
        self.ports = {"en": free_port(), "xx": free_port()}
        objects = [
            m.gateway(*(m.http_listener(port, language) for language, port in self.ports.items())),
            m.policy(cidrs=["127.0.0.0/8"]),
            m.ip_backend("analyzer", port),
            m.ip_backend("provider", origin.plain_port, origin.address),
        ]
        for language in self.ports:
            presidio = {
                "backendRef": {"group": m.OURS, "kind": "Backend", "name": "analyzer"},
                "entities": [{"name": "PERSON", "action": "Placeholder"}, {"name": "CRYPTO", "action": "Redact"}],
                "language": language,
                "timeout": 20,
            }
            config = {"entities": [{"name": "EMAIL", "action": "Placeholder"}], "presidio": presidio}
            extension = {"name": "pii", "type": "PIIDetector", "phase": "request-headers", "config": config}
            policy = m.policy(name=f"pii-{language}", extensions=[{**extension, "timeout": "60s"}])
            policy["spec"]["targetRefs"] = [{"group": m.GATEWAY_API, "kind": "HTTPRoute", "name": language}]
            objects += [policy, m.http_route(language, m.prefix_rule("/", "provider"), section=language)]
        self.gateway = stack.enter_context(GatewayProcess(folder / "g", objects))

    def analyzed(self) -> list[str]:
        """The texts that the analyzer was asked about."""
        return [json.loads(line) for line in self._said.read_text().splitlines()]

    def ask(self, *texts: str, language: str = "en") -> tuple[int, Any]:
        """Status and JSON of the answer to a chat with these turns of the user."""
        connection = HTTPConnection("127.0.0.1", self.ports[language], timeout=WAIT_S)
        messages = [{"role": "user", "content": text} for text in texts]
        body = json.dumps({"model": "m", "messages": messages}, ensure_ascii=False).encode()
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        connection.close()
        return answer.status, said


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if subprocess.run([PYTHON, "-c", "import presidio_analyzer"], capture_output=True, check=False).returncode:
        pytest.skip("presidio-analyzer is not installed: EGRESSPROXY_PRESIDIO_PYTHON names a Python that has it")
    with ExitStack() as stack:
        yield World(stack, tmp_path_factory.mktemp("presidio"))


def test_what_the_analyzer_finds_is_replaced_and_comes_back(world: World):
    status, said = world.ask(f"𝒶 😀 {PERSON} (zoe@example.com) pays to {COIN}; Ng Văn knows")
    assert status == 200
    sent = "𝒶 😀 <PERSON_1> (<EMAIL_1>) pays to [CRYPTO]; <PERSON_2> knows"
    assert world.provider.requests[-1].body["messages"][0]["content"] == sent
    answer = said["choices"][0]["message"]["content"]
    assert answer == f"You said: 𝒶 😀 {PERSON} (zoe@example.com) pays to [CRYPTO]; Ng Văn knows"


def test_texts_without_words_are_no_question(world: World):
    """The analyzer refuses an empty text."""
    assert world.ask("", " ", f"I am {PERSON}")[0] == 200
    said = [each["content"] for each in world.provider.requests[-1].body["messages"]]
    assert said == ["", " ", "I am <PERSON_1>"]
    assert "" not in world.analyzed()


def test_a_long_text_is_asked_about_whole(world: World):
    text = "well, " * 5000 + PERSON + " said so. " * 5000
    status, _ = world.ask(text)
    assert status == 200
    assert world.provider.requests[-1].body["messages"][0]["content"] == text.replace(PERSON, "<PERSON_1>")


def test_what_the_analyzer_refuses_does_not_pass(world: World):
    before = len(world.provider.requests)
    status, said = world.ask(f"I am {PERSON}", language="xx")
    assert (status, len(world.provider.requests)) == (502, before)
    assert said["error"]["code"] == "filter_failed"
    assert PERSON not in world.gateway.stderr + world.gateway.access_log_path.read_text()
