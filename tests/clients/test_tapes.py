"""`run --record` and `run --replay --strict` with the SDKs of OpenAI and Anthropic."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.origins import ai
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.waiting import WAIT_S

EGRESSPROXY = str(Path(sys.executable).with_name("egressproxy"))
NAMES = ("api.openai.com", "api.anthropic.com")
KEY = "sk-proj-Zq8Lw3Nn5Rt7Vx9Bd1Fh2Jk4Mp6Qs8Tu"
#: Asks both, also for streams; with a third argument something that it has not asked before.
ASKS = """
import sys
import anthropic, openai
port, key, *more = sys.argv[1:]
chat = openai.OpenAI(api_key=key, base_url=f"https://api.openai.com:{port}/openai/v1", max_retries=0).chat.completions
def ask(text, **how):
    return chat.create(model="gpt-test", messages=[{"role": "user", "content": text}], **how)
print(ask("one two").choices[0].message.content)
print("".join(each.choices[0].delta.content or "" for each in ask("three four five", stream=True)))
claude = anthropic.Anthropic(api_key=key, base_url=f"https://api.anthropic.com:{port}/anthropic", max_retries=0)
with claude.messages.stream(model="c", max_tokens=9, messages=[{"role": "user", "content": "six seven"}]) as stream:
    print("".join(stream.text_stream))
for text in more:
    try:
        ask(text)
    except openai.PermissionDeniedError as error:
        print(error.message)
"""


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    words = [EGRESSPROXY, "run", *map(str, arguments)]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=WAIT_S, env=os.environ | variables, check=False
    )


def test_what_sdks_have_asked_is_answered_without_a_network(tmp_path: Path):
    pki, tapes, config = Pki(tmp_path), tmp_path / "tapes", tmp_path / "gateway.yaml"
    with OriginServer([ai.routes()], pki.server_context(*NAMES)) as origin:
        policy = m.policy(mode="Open", cidrs=["127.0.0.0/8"])
        policy["spec"]["dns"] = {"hosts": {name: [origin.address] for name in NAMES}}
        config.write_text(yaml.safe_dump_all([m.gateway(m.forward_listener(free_port())), policy]), "utf-8")
        ask = (sys.executable, "-c", ASKS, str(origin.tls_port))
        taped = run("--config", config, "--record", tapes, "--", *ask, KEY, SSL_CERT_FILE=str(pki.ca_file))
        asked = len(origin.seen)
    assert (taped.returncode, taped.stdout) == (0, "one two\nthree four five\nsix seven\n"), taped.stderr
    assert asked == 3
    files = sorted(tapes.iterdir())
    assert [each.stem.partition("_")[0] for each in files] == ["api.anthropic.com", "api.openai.com"]
    assert not any(KEY in each.read_text("utf-8") for each in files)

    played = run("--replay", tapes, "--strict", "--", *ask, "another-key", "one three")
    assert played.stdout.startswith(taped.stdout), played.stderr
    assert 'not in the tapes: body $.messages[0].content is "one three", the tape has "one two"' in played.stdout
    assert played.returncode == 1
    assert "3 exchanges played from tapes" in played.stderr
    assert "not in the tapes: POST https://api.openai.com" in played.stderr
