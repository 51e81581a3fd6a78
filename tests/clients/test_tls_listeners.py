"""Clients that speak TLS with the gateway itself: a proxy reached over TLS, and a base URL with https."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.clients.test_table import script
from tests.clients.world import Outcome, Require, Way, World
from tests.support.origins.basic import GREETING, pattern

MEBIBYTE = 1024 * 1024
WAYS = pytest.mark.parametrize("way", [Way.HTTP, Way.TLS], ids=lambda way: way.value)


def curl(world: World, url: str, *options: str) -> str:
    """curl's output; what is not on this machine is reached through the proxy, over TLS."""
    command = ["curl", "--silent", "--show-error", "--max-time", "60", *options, url]
    if "127.0.0.1" not in url:
        command += ["--proxy", f"https://127.0.0.1:{world.forward_tls_port}", "--proxy-cacert", str(world.pki.ca_file)]
    ended = world.run(command, Way.BASE)
    return ended.output


@WAYS
def test_a_proxy_over_tls_serves(world: World, require: Require, way: Way):
    require("curl")
    since = world.gateway.mark()
    assert curl(world, world.url(way, Outcome.ALLOWED, "/hello")) == GREETING
    world.gateway.wait_for_record(since=since, listener="forward-tls", status=200)


@WAYS
def test_a_proxy_over_tls_denies(world: World, require: Require, way: Way):
    require("curl")
    since = world.gateway.mark()
    shown = curl(world, world.url(way, Outcome.DENIED, "/hello"), "--include")
    assert f"403 Denied: {world.denial(way)}" in shown
    world.gateway.wait_for_record(since=since, listener="forward-tls", status=403, reason="destination_not_allowed")


@WAYS
def test_a_proxy_over_tls_moves_large_bodies_both_ways(world: World, require: Require, tmp_path: Path, way: Way):
    require("curl")
    (tmp_path / "up").write_bytes(pattern(3 * MEBIBYTE))
    seen = curl(world, world.url(way, Outcome.ALLOWED, "/upload"), "--upload-file", str(tmp_path / "up"))
    assert json.loads(seen)["sha256"] == hashlib.sha256(pattern(3 * MEBIBYTE)).hexdigest()
    curl(world, world.url(way, Outcome.ALLOWED, f"/bytes/{5 * MEBIBYTE}"), "--output", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == pattern(5 * MEBIBYTE)


@pytest.mark.parametrize(("client", "path"), [("openai", "/openai/v1"), ("anthropic", "/anthropic")])
def test_an_sdk_is_served_by_a_base_url_with_https(
    world: World, require: Require, tmp_path: Path, client: str, path: str
):
    require(f"python:{client}")
    base = f"https://127.0.0.1:{world.reverse_tls_port}/keyed{path}"
    ended = world.run(script(f"{client}_chat")(base, tmp_path), Way.BASE)
    assert ended.status == 0, ended.output
    assert "stream: three small words" in ended.output
    world.gateway.wait_for_record(listener="https", status=200, backend="agents/keyed")


def test_a_large_download_by_a_base_url_with_https_arrives_unchanged(world: World, require: Require, tmp_path: Path):
    require("curl")
    url = f"https://127.0.0.1:{world.reverse_tls_port}/allowed/bytes/{5 * MEBIBYTE}"
    curl(world, url, "--output", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == pattern(5 * MEBIBYTE)
