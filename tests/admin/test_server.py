"""The admin server over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from egressproxy import __version__
from egressproxy.admin.server import OPEN, AdminServer, Surface
from egressproxy.admin.write_access import WriteAccess
from egressproxy.kubeapi.read.discovery import AGGREGATED
from tests.admin.kit import Answer, State, admin_server, ask, serving
from tests.support.waiting import WAIT_S


async def test_health_is_200_and_readiness_says_what_is_missing(admin: AdminServer, state: State):
    assert [(await ask(admin, path)).status for path in ("/healthz", "/livez", "/readyz")] == [200, 200, 200]
    state.why = "listener forward of default/gw is not bound"
    answer = await ask(admin, "/readyz")
    assert answer.status == 503
    assert answer.body == b"not ready: listener forward of default/gw is not bound\n"
    assert (await ask(admin, "/healthz")).status == 200


async def test_metrics_are_those_of_the_state(admin: AdminServer, state: State):
    state.metrics.reload_succeeded(7)
    answer = await ask(admin, "/metrics")
    assert answer.status == 200
    assert answer.fields["content-type"].startswith("text/plain; version=0.0.4")
    assert b"egress_config_generation 7.0" in answer.body
    fancy = await ask(admin, "/metrics", extra="Accept: application/openmetrics-text; version=1.0.0\r\n")
    assert fancy.fields["content-type"].startswith("application/openmetrics-text")


async def test_the_api_answers_objects_and_redacts_secrets(admin: AdminServer):
    answer = await ask(admin, "/api/v1/namespaces/default/secrets/key")
    assert answer.status == 200
    assert answer.json()["metadata"]["name"] == "key"
    for path in ("/api/v1/secrets", "/api/v1/namespaces/default/secrets/key", "/config", "/metrics"):
        shown = await ask(admin, path)
        assert shown.status == 200
        assert b"CANARY" not in shown.body
        assert b"Q0FOQVJZ" not in shown.body


async def test_a_trailing_slash_and_discovery_work(admin: AdminServer):
    assert (await ask(admin, "/apis/")).json()["kind"] == "APIGroupList"
    assert (await ask(admin, "/version")).json()["gitVersion"] == f"v1.32.0+egressproxy.{__version__}"
    assert (await ask(admin, "/")).status == 200


async def test_an_unknown_path_is_a_status_object(admin: AdminServer):
    answer = await ask(admin, "/nope")
    assert answer.status == 404
    assert answer.json()["kind"] == "Status"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_nothing_can_be_changed(admin: AdminServer, method: str):
    answer = await ask(admin, "/api/v1/secrets", method=method)
    assert answer.status == 405
    assert answer.fields["allow"] == "GET, HEAD"


async def test_head_has_no_body(admin: AdminServer):
    answer = await ask(admin, "/healthz", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.fields["content-length"] == "3"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:15900", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:15900", 200),
        ("evil.example", 403),
        ("evil.example:15900", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("169.254.169.254", 403),
        ("[::1", 403),
        ("[::1].evil.example", 403),
        ("127.0.0.1:80@evil.example", 403),
        ("localhost:1.evil.example", 403),
        ("[evil]", 403),
    ],
)
async def test_on_loopback_only_loopback_names_are_answered(admin: AdminServer, host: str, status: int):
    assert (await ask(admin, "/healthz", host=host)).status == status


TOKEN = "0123456789abcdef"
#: What browsers say of a page that is not of this address, each in one way, old and new ones.
OTHER_PAGES = (
    "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n",
    "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\n",
    "Sec-Fetch-Site: something new\r\n",
    "Origin: http://evil.example\r\n",
    "Origin: null\r\n",
    "Origin: http://localhost:8000\r\n",
    "Origin: http://localhost\r\nOrigin: http://evil.example\r\n",
    "Sec-Fetch-Site: same-origin\r\nOrigin: http://evil.example\r\n",
)


def routes(admin: AdminServer) -> list[tuple[str, str]]:
    """Method and path of all that this server answers, and of some that it does not know."""
    of_api = ("/api", "/apis", "/api/v1/secrets", "/config", "/openapi/v2", "/intercept/cas", "/ui", "/ui/page.js")
    unknown = ("/nope", "/healthz/", "/ui/nope", "/METRICS", "//metrics")
    writes = [("POST", "/api/v1/namespaces/a/secrets"), ("DELETE", "/api/v1/secrets"), ("POST", "/ui/oidc")]
    return [*admin._handlers, *(("GET", path) for path in (*of_api, *unknown)), *writes]


def test_what_a_network_sees_without_a_token_is_decided_by_name():
    assert {
        "/healthz", "/livez", "/readyz", "/metrics", "/ui", "/ui/", "/ui/page.js", "/ui/page.css", "/ui/oidc",
    } == OPEN  # fmt: skip


@pytest.mark.parametrize(("has_token", "refused"), [(False, 403), (True, 401)])
async def test_on_a_network_every_route_but_the_open_ones_needs_the_token(
    state: State, tmp_path: Path, has_token: bool, refused: int
):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    access = WriteAccess(file if has_token else None)
    async with serving(admin_server(state, "0.0.0.0", access=access)) as admin:
        for method, path in routes(admin):
            for fields in ("", f"Authorization: Bearer {TOKEN[:-1]}x\r\n"):
                answer = await ask(admin, path, method, "gateway", fields)
                if path not in OPEN:
                    assert answer.status == refused, (method, path)
                    assert "--api-token-file FILE" in answer.json()["message"]
                    assert answer.fields.get("www-authenticate") == ("Bearer" if has_token else None)
                elif not path.startswith("/ui"):
                    assert answer.status == 200, path
            if has_token:
                answer = await ask(admin, path, method, "gateway", f"Authorization: Bearer {TOKEN}\r\n")
                assert answer.status != 401, (method, path)


async def test_through_a_proxy_of_this_machine_every_route_needs_the_token(admin: AdminServer):
    for method, path in routes(admin):
        if path not in OPEN:
            for fields in ("X-Forwarded-For: 10.0.0.9\r\n", "Via: 1.1 front\r\n", "Forwarded: for=10.0.0.9\r\n"):
                assert (await ask(admin, path, method, extra=fields)).status == 403, (method, path)


async def test_no_route_answers_a_name_that_was_rebound_to_this_machine(admin: AdminServer):
    rebound = "Origin: http://evil.example:15900\r\nSec-Fetch-Site: same-origin\r\nX-Egressproxy: page\r\n"
    for method, path in routes(admin):
        for fields in ("", rebound, "Sec-Fetch-Mode: navigate\r\n"):
            answer = await ask(admin, path, method, "evil.example:15900", fields)
            assert (answer.status, "this Host is not served" in answer.json()["message"]) == (403, True), (method, path)


async def test_no_route_answers_a_page_of_another_site(admin: AdminServer):
    for method, path in routes(admin):
        for fields in OTHER_PAGES:
            assert (await ask(admin, path, method, extra=fields)).status == 403, (method, path, fields)


async def test_another_site_may_link_to_the_page_and_to_metrics_alone(admin: AdminServer):
    link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
    for method, path in routes(admin):
        may = path in OPEN and method == "GET"
        assert ((await ask(admin, path, method, extra=link)).status != 403) is may, (method, path)


async def test_the_page_of_this_address_and_an_address_that_is_typed_are_answered(admin: AdminServer):
    for fields in ("Sec-Fetch-Site: none\r\n", "Sec-Fetch-Site: same-origin\r\n", "Origin: http://localhost\r\n"):
        assert (await ask(admin, "/apis", extra=fields)).status == 200


async def test_answers_cannot_be_framed_sniffed_or_cached(admin: AdminServer):
    for path in ("/healthz", "/nope", "/metrics"):
        fields = (await ask(admin, path)).fields
        assert fields["server"] == "egressproxy"
        assert fields["cache-control"] == "no-store"
        assert fields["x-content-type-options"] == "nosniff"
        assert fields["content-security-policy"].startswith("default-src 'none'")


async def test_the_metrics_surface_shows_health_and_metrics_alone(state: State):
    admin = admin_server(state, "127.0.0.1", 0, Surface.METRICS)
    await admin.start()
    try:
        assert [(await ask(admin, path)).status for path in ("/metrics", "/healthz", "/readyz")] == [200, 200, 200]
        assert [(await ask(admin, path)).status for path in ("/", "/apis", "/api/v1/secrets", "/config")] == [404] * 4
    finally:
        await admin.stop()


async def test_a_port_that_is_taken_is_an_error_at_the_start(admin: AdminServer, state: State):
    with pytest.raises(OSError, match="in use"):
        await admin_server(state, "127.0.0.1", admin.port).start()


async def test_a_defect_is_a_500_without_details(admin: AdminServer, state: State, caplog: pytest.LogCaptureFixture):
    state.source.put([None])  # type: ignore[list-item]
    answer = await ask(admin, "/api/v1/secrets")
    assert answer.status == 500
    assert answer.json()["reason"] == "InternalError"
    assert b"NoneType" not in answer.body
    assert "/api/v1/secrets failed" in caplog.text


@pytest.mark.parametrize("line", ["GARBAGE", "GET * HTTP/1.1", "GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b"])
async def test_a_malformed_request_is_400_and_fills_no_log(
    admin: AdminServer, line: str, caplog: pytest.LogCaptureFixture
):
    reader, writer = await asyncio.open_connection(admin.host, admin.port)
    writer.write(f"{line}\r\n\r\n".encode())
    answer = Answer(await asyncio.wait_for(reader.read(), WAIT_S))
    writer.close()
    assert (answer.status, answer.fields["server"], answer.fields["x-content-type-options"], caplog.text) == (
        400, "egressproxy", "nosniff", "",
    )  # fmt: skip


async def test_scrapers_that_stall_do_not_stop_the_loop_or_the_next_scraper(admin: AdminServer, state: State):
    for number in range(500):
        state.metrics.series("gw", f"route-{number}", "b").attempt("ok")
    stalled = []
    for _ in range(10):
        reader, writer = await asyncio.open_connection(admin.host, admin.port, limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        stalled.append((reader, writer))
    assert (await ask(admin, "/healthz")).status == 200
    assert (await ask(admin, "/metrics")).status == 200
    for _, writer in stalled:
        writer.transport.abort()
    assert (await ask(admin, "/metrics")).status == 200


async def test_stop_closes_what_is_open_and_frees_the_port(state: State):
    admin = admin_server(state, "127.0.0.1", 0)
    await admin.start()
    reader, writer = await asyncio.open_connection(admin.host, admin.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"ok\n")
    await admin.stop()
    assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
    writer.close()
    again = admin_server(state, "127.0.0.1", admin.port)
    await again.start()
    await again.stop()


async def test_a_schema_that_cannot_be_had_is_503_and_says_why(admin: AdminServer):
    answer = await ask(admin, "/openapi/v3/api/v1")
    assert (answer.status, answer.json()["message"]) == (503, "no schema today")
    assert (await ask(admin, "/openapi/v3")).status == 200


async def test_aggregated_discovery_has_its_content_type(admin: AdminServer):
    answer = await ask(admin, "/apis", extra=f"Accept: {AGGREGATED[0]},application/json\r\n")
    assert answer.fields["content-type"] == AGGREGATED[0]
    assert answer.json()["kind"] == "APIGroupDiscoveryList"


async def test_what_cannot_be_selected_by_is_a_status_object(admin: AdminServer):
    answer = await ask(admin, "/api/v1/secrets?fieldSelector=spec.x%3D1")
    assert (answer.status, answer.json()["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/apis", 200),
        ("/apis/", 200),
        ("/api%2fv1%2fsecrets", 404),
        ("/api/v1/namespaces/default%2Fsecrets", 404),
        ("/api%5Cv1", 404),
        ("/apis?x=%2f", 200),
        ("http://localhost/apis", 200),
        ("http://127.0.0.1:1/apis", 200),
        ("http://evil.example/apis", 403),
        ("http://localhost@evil.example/apis", 403),
        ("http://evil.example", 403),
    ],
)
async def test_a_target_has_one_reading(admin: AdminServer, target: str, status: int):
    assert (await ask(admin, target)).status == status


async def test_the_index_names_what_is_answered(admin: AdminServer):
    lines = (await ask(admin, "/")).body.decode().splitlines()[1:]
    named = [word for line in lines for word in line.split("   ")[0].split() if word.startswith("/")]
    assert {"/metrics", "/version", "/openapi/v3", "/reload"} <= set(named)
    not_here = ("/explain", "/decisions", "/model", "/cache", "/cache/purge", "/reload", "/ui")
    asked = [path for path in named if path not in not_here]
    assert [path for path in asked if (await ask(admin, path)).status == 404] == []
