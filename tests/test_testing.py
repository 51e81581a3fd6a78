"""A gateway inside a test, and the pytest plugin, as users have them."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from egressproxy.testing import ConfigError, Gateway, gateway

pytest_plugins = ["pytester"]

GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: apps}
spec:
  gatewayClassName: egressproxy
  listeners: [{name: web, port: 8080, protocol: HTTP}]
"""


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        said = f"{self.headers['Host']}{self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def origin() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def get(running: Gateway, url: str) -> tuple[int, str]:
    proxies = {"http": running.proxy_url, "https": running.proxy_url}
    answer = requests.get(url, proxies=proxies, verify=str(running.ca_file), timeout=10)
    return answer.status_code, answer.text


def test_the_five_lines_of_the_documentation_are_green():
    page = (Path(__file__).parents[1] / "docs" / "testing.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].partition("```")[0], names)
    names["test_only_the_api_is_asked"]()


def test_names_lead_to_servers_of_the_test_and_what_was_asked_is_told(origin: int):
    origins = {"api.example.com": f"http://localhost:{origin}", "plain.example.com": origin}
    with gateway(origins=origins, intercept=["api.example.com"]) as running:
        assert get(running, "https://api.example.com/a") == (200, "api.example.com/a")
        assert get(running, "http://plain.example.com/b") == (200, "plain.example.com/b")
        assert get(running, "http://other.example.com/")[0] == 403
        told = [(each["authority"], each["status"], each["reason"]) for each in running.log if each["method"] == "GET"]
        assert told == [
            ("api.example.com:443", 200, "-"), ("plain.example.com:80", 200, "-"),
            ("other.example.com:80", 403, "destination_not_allowed"),
        ]  # fmt: skip
        assert running.wait_for(status=403)["method"] == "GET"
        with pytest.raises(AssertionError, match="no exchange with"):
            running.wait_for(status=418, timeout_s=0)
        assert running.env["https_proxy"] == running.proxy_url == f"http://127.0.0.1:{running.port}"
        ssl.create_default_context(cafile=running.env["SSL_CERT_FILE"])
        files = running.ca_file.parent
    assert not files.exists()
    assert len(running.log) >= 3
    with pytest.raises(requests.ConnectionError):
        requests.get(running.proxy_url, timeout=10)
    with pytest.raises(RuntimeError, match="once"), running:
        pass


async def test_several_run_beside_the_loop_of_a_test_that_may_block_it(origin: int):
    closed = {"destinations": {"allow": [{"hostnames": ["a.example"]}]}}
    async with gateway(closed) as one, gateway(allow="127.0.0.1") as other:
        assert get(one, "http://b.example/")[0] == 403  # it blocks
        answer = await asyncio.to_thread(get, other, f"http://127.0.0.1:{origin}/x")
        assert answer == (200, f"127.0.0.1:{origin}/x")
        assert (len(one.log), len(other.log)) == (1, 1)


def test_manifests_are_text_dicts_and_paths_and_their_ports_are_free_ones(tmp_path: Path, origin: int):
    (tmp_path / "gateway.yaml").write_text(GATEWAY)
    with (
        gateway(tmp_path / "gateway.yaml", origins={"a.test": origin}) as one,
        gateway(GATEWAY, {"mode": "Open"}) as two,
    ):
        assert one.ports == {8080: one.port}
        assert one.port != two.port
        answer = requests.get(f"http://127.0.0.1:{one.port}/r", headers={"Host": "a.test"}, timeout=10)
        assert answer.text == "a.test/r"


def test_filters_stand_in_the_folder_and_their_errors_are_told_in_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    code = "from egressproxy.filters import *\nclass F(Filter):\n    def request_headers(self, x): {}['the text']\n"
    (tmp_path / "f.py").write_text(code)
    extension = {"name": "f", "type": "egressproxy.io/Python:v1", "phase": "request-headers"}
    policy = {"mode": "Open", "extensions": [{**extension, "config": {"path": "f.py"}}]}
    with gateway(policy, folder=tmp_path) as running:
        assert get(running, "http://a.example/")[0] == 502
        assert running.log[0]["detail"] == "filter f: KeyError at f.py:3"
    assert "KeyError: 'the text'" in caplog.text


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"destinations": {"allow": [{"hostname": ["a"]}]}}, r"<source 1>:\d+:\d+: EgressPolicy .*mean hostnames"),
        ("kind: Foo\nx: 1", "<source 1>:1:1: Foo: apiVersion: apiVersion is missing"),
        ("none.yaml", "none.yaml: cannot be read: no such file"),
    ],
    ids=["spec", "text", "path"],
)
def test_a_configuration_that_would_be_refused_is_told_with_its_place(source: object, why: str):
    with pytest.raises(ConfigError, match=why), gateway(source):  # type: ignore[arg-type]
        pass


def test_an_origin_that_is_no_server_of_plain_http_is_refused():
    for place in ("https://127.0.0.1:1", "a.example:80", "127.0.0.1"):
        with pytest.raises(ValueError, match="no server of plain HTTP"), gateway(origins={"a.test": place}):
            pass


def test_warnings_of_the_configuration_are_logged(caplog: pytest.LogCaptureFixture):
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "none"}
    with gateway({"targetRefs": [target], "mode": "Open"}):
        assert "none" in caplog.text


PLUGIN = (
    "-o", "asyncio_default_fixture_loop_scope=function", "-p", "no:egressproxy", "-p", "egressproxy.pytest_plugin",
    "-p", "no:cacheprovider", "-o", "asyncio_mode=strict",
)  # fmt: skip


def test_the_plugin_gives_tests_a_gateway_and_shows_what_failed_ones_asked(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import os, pytest, requests

        pytestmark = pytest.mark.egress(allow=["a.example"])

        def test_plain(egress_gateway):
            assert requests.get("http://b.example/x", timeout=10).status_code == 403
            assert [line["path"] for line in egress_gateway.log] == ["/x"]

        @pytest.mark.asyncio
        async def test_async(egress_gateway):
            assert os.environ["HTTPS_PROXY"] == egress_gateway.proxy_url

        def test_by_the_marker_alone():
            assert requests.get("http://b.example/y", timeout=10).status_code == 200

        @pytest.mark.egress("policies.yaml")
        def test_path(): ...

        @pytest.mark.egress(alow=["a.example"])
        def test_wrong(): ...
        """
    )
    before = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(passed=2, failed=1, errors=2)
    result.stdout.fnmatch_lines([
        "the gateway of this test: *unexpected keyword argument 'alow'",
        "*Captured egress gateway call*",
        "GET b.example:80 /y 403 destination_not_allowed*",
    ])  # fmt: skip
    result.stdout.fnmatch_lines(["the gateway of this test: *policies.yaml: cannot be read: no such file*"])
    assert {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")} == before


def test_the_plugin_records_once_replays_and_fails_for_what_has_no_tape(pytester: pytest.Pytester, origin: int):
    text = """
        import pytest, requests

        @pytest.mark.egress(tapes="tapes", allow=["a.example"], origins={{"api.test": {port}}})
        @pytest.mark.parametrize("path", ["a/b"])
        def test_api(path):
            answer = requests.get(f"http://api.test/{{path}}{more}", timeout=10)
            assert answer.text == f"api.test/{{path}}", answer.reason
        """
    pytester.makepyfile(test_it=text.format(port=origin, more=""))
    pytester.runpytest_inprocess(*PLUGIN, "--egress-record", "none").assert_outcomes(errors=1)
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)
    recorded = sorted(str(path.relative_to(pytester.path)) for path in pytester.path.rglob("tapes/**/*.yaml"))
    assert recorded == ["tapes/test_it/test_api[a_b]-92cab1ae/api.test.yaml"]
    pytester.makepyfile(test_it=text.format(port=1, more=""))  # nobody is there
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)
    pytester.makepyfile(test_it=text.format(port=1, more="/other"))
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["requests have no tape (--egress-record all *", "not in the tapes: GET *api.test/a/b/other*"]
    )


def test_who_does_not_ask_for_a_gateway_or_for_bodies_imports_nothing_of_them():
    said = "print(sorted(m for m in sys.modules if m.startswith('egressproxy') and (egressproxy or '.ai.' in m)))"
    code = f"import egressproxy.pytest_plugin, json, sys; {said}\n"
    code += f"from egressproxy.filters import *; egressproxy = None; {said}; print(json.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    plugin = ["egressproxy", "egressproxy.build", "egressproxy.pytest_plugin"]
    assert done.stdout.splitlines() == [str(plugin), "[]", "json"]
