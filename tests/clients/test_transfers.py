"""What real clients move through the gateway: uploads, downloads, streams, pushes, and the added key."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clients.test_table import script
from tests.clients.world import FRESH, Outcome, Require, Way, World
from tests.support.origins.basic import pattern

WAYS = pytest.mark.parametrize("way", Way, ids=lambda way: way.value)
MEBIBYTE = 1024 * 1024


def curl(world: World, way: Way, path: str, *options: str) -> str:
    """curl's output for a path of the origin; fails the test where curl fails."""
    url = world.url(way, Outcome.ALLOWED, path)
    ended = world.run(["curl", "--silent", "--show-error", "--fail", "--max-time", "60", *options, url], way)
    assert ended.status == 0, ended.output
    return ended.output


@WAYS
def test_a_large_download_arrives_unchanged(world: World, require: Require, tmp_path: Path, way: Way):
    require("curl")
    curl(world, way, f"/bytes/{5 * MEBIBYTE}", "--output", str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == pattern(5 * MEBIBYTE)


@WAYS
def test_octets_of_a_transfer_stand_in_the_access_log(world: World, require: Require, tmp_path: Path, way: Way):
    require("curl")
    (tmp_path / "file").write_bytes(pattern(MEBIBYTE))
    since = world.gateway.mark()
    curl(world, way, "/echo", "--data-binary", f"@{tmp_path / 'file'}", "--output", str(tmp_path / "echoed"))
    record = world.gateway.wait_for_record(since=since, reason="-")
    assert MEBIBYTE <= record["bytes_in"] < MEBIBYTE + 10_000
    assert MEBIBYTE <= record["bytes_out"] < MEBIBYTE + 10_000


@WAYS
def test_octets_of_a_websocket_stand_in_the_access_log(world: World, require: Require, tmp_path: Path, way: Way):
    require("python:websockets")
    since = world.gateway.mark()
    world.run(script("websockets_echo")(world.url(way, Outcome.ALLOWED, "/ws"), tmp_path), way)
    status = world.websocket_status(way)
    record = world.gateway.wait_for_record(since=since, status=status, reason="-")
    assert 512_000 <= record["bytes_in"] < 530_000
    assert 512_000 <= record["bytes_out"] < 530_000


@WAYS
@pytest.mark.parametrize(
    "options",
    [[], ["--header", "Transfer-Encoding: chunked"], ["--http1.0"], ["--header", "Expect:"]],
    ids=["expect-continue", "chunked", "http1.0", "no-expect"],
)
def test_a_large_upload_arrives_unchanged(world: World, require: Require, tmp_path: Path, way: Way, options: list[str]):
    require("curl")
    (tmp_path / "file").write_bytes(pattern(3 * MEBIBYTE))
    seen = json.loads(curl(world, way, "/upload", "--upload-file", str(tmp_path / "file"), *options))
    assert seen == {"octets": 3 * MEBIBYTE, "sha256": hashlib.sha256(pattern(3 * MEBIBYTE)).hexdigest()}


def test_a_body_that_comes_before_the_backend_is_dialled_arrives(world: World, require: Require, tmp_path: Path):
    require("curl")
    (tmp_path / "file").write_bytes(pattern(MEBIBYTE))
    url = world.origin.url(FRESH, "/upload")
    command = ["curl", "--silent", "--show-error", "--max-time", "20", "--header", "Expect:"]
    ended = world.run([*command, "--data-binary", f"@{tmp_path / 'file'}", url], Way.HTTP)
    assert ended.status == 0, ended.output
    assert json.loads(ended.output)["octets"] == MEBIBYTE


@WAYS
def test_server_sent_events_and_chunks_come_whole(world: World, require: Require, way: Way):
    require("curl")
    events = curl(world, way, "/sse/50", "--no-buffer")
    assert events.count("data: ") == 51
    assert events.endswith("data: [DONE]\n\n")
    assert curl(world, way, "/chunked/100") == "".join(f"chunk {number}\n" for number in range(100))


@WAYS
def test_a_compressed_answer_is_passed_as_it_is(world: World, require: Require, way: Way):
    require("curl")
    assert json.loads(curl(world, way, "/gzip", "--compressed")) == {"compressed": True}


@pytest.mark.parametrize("way", [Way.HTTP, Way.BASE], ids=lambda way: way.value)
def test_the_origin_sees_via_and_nothing_of_the_hop_before(world: World, require: Require, way: Way):
    require("curl")
    options = ["--header", "Connection: X-Secret-Hop", "--header", "X-Secret-Hop: 1", "--header", "X-End-To-End: 2"]
    seen = json.loads(curl(world, way, "/headers", *options))
    names = [name.lower() for name, _ in seen["fields"]]
    assert "via" in names
    assert "x-end-to-end" in names
    assert not {"x-secret-hop", "proxy-connection", "proxy-authorization"} & set(names)
    assert names.count("host") == 1


def test_several_requests_share_one_connection_to_the_proxy(world: World, require: Require):
    require("curl")
    url = world.url(Way.HTTP, Outcome.ALLOWED, "/hello")
    command = ["curl", "--silent", "--show-error", "--fail", "--write-out", "%{num_connects}\n", url, url, url]
    ended = world.run(
        [*command[:-3], *(part for _ in range(3) for part in ("--output", "/dev/null")), *command[-3:]], Way.HTTP
    )
    assert ended.output.split() == ["1", "0", "0"], ended.output


@WAYS
def test_a_git_push_of_several_mebibytes_arrives(world: World, require: Require, tmp_path: Path, way: Way):
    require("git")
    url = world.url(way, Outcome.ALLOWED, "/git/project.git")
    branch = f"from-{way.value}"
    settings = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "Test")
    settings |= dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "test@example.test")
    steps = [
        ["git", "clone", "--quiet", url, "work"],
        ["git", "-C", "work", "checkout", "--quiet", "-b", branch],
        ["git", "-C", "work", "add", "large"],
        ["git", "-C", "work", "commit", "--quiet", "--message", "Something large"],
        ["git", "-C", "work", "push", "--quiet", "origin", branch],
        ["git", "ls-remote", "--exit-code", url, branch],
    ]
    # Random enough not to be compressed away: a push above 1 MiB is sent in chunks, after a probe.
    noise = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(100_000))
    for step in steps:
        if "add" in step:
            (tmp_path / "work" / "large").write_bytes(noise)
        ended = world.run(step, way, folder=tmp_path, **settings)
        assert ended.status == 0, f"{step}: {ended.output}"
    pushed = world.origin.requests("/git/project.git/git-receive-pack")
    assert any(seen.get("Transfer-Encoding") == ["chunked"] for seen in pushed)


def test_pip_installs_through_the_tunnel(world: World, require: Require, tmp_path: Path):
    require("python:pip")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    index = world.url(Way.TLS, Outcome.ALLOWED, "/simple/")
    ended = world.run([*command, "--index-url", index, "--target", str(tmp_path), "tiny-parcel"], Way.TLS,
                      PIP_CONFIG_FILE="/dev/null")  # fmt: skip
    assert ended.status == 0, ended.output
    assert (tmp_path / "tiny_parcel.py").exists()


def test_a_client_that_leaves_in_the_middle_harms_nobody(world: World, require: Require):
    require("curl")
    url = world.url(Way.HTTP, Outcome.ALLOWED, f"/bytes/{64 * MEBIBYTE}")
    process = subprocess.Popen(
        ["curl", "--silent", "--limit-rate", "64k", "--output", "/dev/null", url],
        env=world.environment(Way.HTTP),
        stdin=subprocess.DEVNULL,
    )
    since = world.gateway.mark()
    while not any(seen.target == f"/bytes/{64 * MEBIBYTE}" for seen in world.origin.seen):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    record = world.gateway.wait_for_record(since=since, reason="client_gone")
    assert record["bytes_out"] < 64 * MEBIBYTE
    assert curl(world, Way.HTTP, "/hello")
