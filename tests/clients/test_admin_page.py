"""The admin page of a real gateway, in Debian's Chromium: every view, what it changes, and who else may not."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from egressproxy.admin.oidc import OidcLogin
from egressproxy.admin.server import AdminServer
from egressproxy.admin.ui import FILES, FOLDER, page_file
from egressproxy.admin.write_access import WriteAccess
from tests.admin.kit import admin_server
from tests.admin.test_introspection import State
from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, get, read_head
from tests.support import manifests as m
from tests.support.chromium import Chromium
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.oidc_issuer import CLIENT, OidcIssuer
from tests.support.process import GatewayProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

AXE = FOLDER.parent / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = "hour", "live", "denials", "routes", "backends", "limits", "holds", "certificates", "explain", "configuration"
TOKEN = "a token of 32 characters, or more"
DESKTOP, PHONE = (1200, 800), (360, 740)


def needed(what: str, is_here: object) -> None:
    if not is_here:
        (pytest.fail if os.environ.get("EGRESSPROXY_CLIENTS") == "required" else pytest.skip)(f"{what} is not here")


class World(GatewayProcess):
    """A gateway whose policy was written through its API: origin.test is allowed, once a person has approved."""

    policies = "/apis/egressproxy.io/v1alpha1/namespaces/agents/egresspolicies"

    def __init__(self, folder: Path, origin: Origin, dns: str) -> None:
        self.port, self.origin = free_port(), origin
        arguments = ["--api-writes", "--state-dir", str(folder / "state")]
        super().__init__(folder / "gateway", [m.gateway(m.forward_listener(self.port))], arguments=arguments)
        hold = {"name": "hold", "type": "egressproxy.io/ApprovalHold:v1", "config": {"timeout": "5m"}}
        worker = {"cidrs": ["127.0.0.0/8"], "namespace": "agents", "serviceAccount": "worker"}
        sections = {
            "identity": {"address": {"clients": [worker]}}, "extensions": [hold],
            "limits": {"requests": [{"per": "Identity", "limit": 100, "unit": "Hour"}]},
        }  # fmt: skip
        self.policy = m.policy(["origin.test"], dns=dns, cidrs=ALLOW_LOOPBACK, **sections)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def write(self, path: str = policies, method: str = "POST") -> None:
        body, fields = json.dumps(self.policy).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, body, fields, method=method)):
            pass

    def allow(self, host: str) -> None:
        """As another person does it meanwhile."""
        self.policy["spec"]["destinations"]["allow"].append({"hostnames": [host]})
        self.write(self.policies + "/default", "PUT")

    def status(self, host: str) -> int:
        """What a request to this host is answered with."""
        with client(self.port) as sock:
            sock.sendall(get(host, self.origin.port))
            return int(read_head(sock).split()[1])

    def read(self, path: str) -> object:
        with urllib.request.urlopen(self.url + path) as answer:
            return json.loads(answer.read())


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    needed("the bundle (`make page`)", (FOLDER / "page.js").exists() and AXE.exists())
    folder = tmp_path_factory.mktemp("page")
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as origin, World(folder, origin, dns.address) as gateway:
        gateway.write()
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(gateway: World, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chromium]:
    program = shutil.which("chromium")
    needed("chromium", program)
    async with Chromium(str(program), tmp_path_factory.mktemp("chromium")) as browser:
        await browser.look(*DESKTOP)
        await browser.open(f"{gateway.url}/ui")
        yield browser


async def view(browser: Chromium, name: str) -> None:
    """Go to a view, as a press on its link does."""
    await browser.run(f"location.hash = '#/{name}'")
    here = f"document.querySelector('nav [aria-current]')?.hash === '#/{name.partition('?')[0]}'"
    await browser.until(f"{here} && !document.querySelector('main').innerText.includes('Loading')")


async def test_a_request_is_seen_as_it_ends_and_explained(gateway: World, browser: Chromium):
    await view(browser, "live?denied=1")
    await browser.until("document.querySelector('main [role=status]').innerText === 'live'")
    assert gateway.status("paste.test") == 403
    await browser.shows("destination_not_allowed")
    await browser.run("document.querySelector('button.row').click()")
    await browser.shows("EgressPolicy agents/default")
    await browser.press("Explain this request")
    await browser.shows("paste.test is not allowed by policy agents/default")


async def test_a_filter_that_is_none_is_told(browser: Chromium):
    await view(browser, "live?status=none")
    await browser.shows("status 'none' is neither a status such as 403 nor a class such as 4xx")
    browser.errors.clear()


async def test_a_text_from_outside_stays_a_text(browser: Chromium):
    await view(browser, "explain?method=GET&url=http://evil.test/%22%3E%3Cimg%20src=x%20onerror=window.evil=1%3E")
    await browser.until("document.querySelector('[role=alert], section')")
    assert await browser.run("[document.images.length, 'evil' in window].join()") == "0,false"
    assert await browser.run("document.querySelector('[name=url]').clientWidth") > 200, "a URL is long"


async def test_the_change_that_allows_a_denied_request_is_shown_and_applied(gateway: World, browser: Chromium):
    assert gateway.status("other.test") == 403
    await view(browser, "denials")
    await browser.press("other.test")
    await browser.press("Show the change")
    await browser.until(
        "[...document.querySelectorAll('pre.diff .good')].some((each) => each.innerText.includes('other.test'))"
    )
    gateway.allow("teammate.test")
    await browser.press_twice("Apply")
    await browser.shows("The configuration has changed meanwhile")
    anew = "document.dispatchEvent(new Event('visibilitychange'))"  # it asks at once
    await browser.until(f"{anew} && document.querySelector('pre.diff')?.textContent.includes('teammate.test')")
    await browser.run("document.querySelector('td details').open = true")
    await browser.press_twice("Apply")
    await browser.shows("The configuration in service allows it now.")
    found = gateway.read("/explain?method=GET&dns=0&url=http://other.test:" + str(gateway.origin.port))
    assert found["verdict"] == "allowed"  # type: ignore[index]
    assert "teammate.test" in json.dumps(gateway.read(gateway.policies + "/default")), "nobody's change is undone"


async def test_a_request_that_waits_is_approved(gateway: World, browser: Chromium):
    await view(browser, "holds")
    with client(gateway.port) as sock:
        sock.sendall(get("origin.test", gateway.origin.port))
        await browser.press_twice("Approve")
        assert read_head(sock).split()[1] == b"200"
    await browser.shows("No request waits")


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, True)], ids=["light", "dark on a phone"])
async def test_every_view_can_be_used_by_everybody(browser: Chromium, size: tuple[int, int], dark: bool):
    axe = AXE.read_text(encoding="utf-8")
    await browser.look(*size, dark=dark)
    for name in VIEWS:
        await view(browser, name)
        await browser.run("[...document.querySelectorAll('button.row')].slice(0, 2).at(-1)?.click()")
        assert await browser.complaints(axe) == {}, name
        assert await browser.run("document.documentElement.scrollWidth") == size[0], name
        tables = "[...document.querySelectorAll('.scroll')]"
        assert await browser.run(f"{tables}.filter((each) => each.scrollWidth > each.clientWidth).length") == 0, name
    await browser.look(*DESKTOP)
    assert browser.errors == []


async def test_a_page_of_another_address_changes_nothing(gateway: World, browser: Chromium):
    """Simple requests of any page, those that ask for permission first, and a form."""
    await browser.open(f"http://127.0.0.1:{gateway.origin.port}/")
    kill = f"{gateway.url}/kill-switch?kill=a&why=b"
    for init in ("{}", "{mode: 'no-cors'}", "{headers: {'X-Egressproxy': 'page', 'Content-Type': 'application/json'}}"):
        script = f"fetch({kill!r}, {{method: 'POST', ...{init}}}).then((each) => each.status, () => 'refused')"
        assert await browser.run(script) in ("refused", 0, 403)
    await browser.run(
        f"document.body.innerHTML = `<form method=POST action='{kill}'></form>`; document.forms[0].submit()"
    )
    await browser.shows("a page of another site may not ask")
    assert gateway.read("/kill-switch")["killed"] == []  # type: ignore[index]
    browser.errors.clear()


async def test_of_another_machine_the_page_asks_for_the_token(browser: Chromium, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    admin: AdminServer = admin_server(State(), "0.0.0.0", access=WriteAccess(file))
    await admin.start()
    try:
        await browser.open(f"http://127.0.0.1:{admin.port}/ui#/denials")
        await browser.shows("Token")
        sign_in = (
            "document.querySelector('[name=token]').value = {!r}; document.querySelector('form.banner button').click()"
        )
        await browser.run(sign_in.format("a wrong token, as long as it is"))
        await browser.shows("The token is refused")
        await browser.run(sign_in.format(TOKEN))
        await browser.shows("Sign out")
        await browser.until("!document.querySelector('[name=token]')")
        assert (
            await browser.run("[document.cookie, localStorage.length, location.href.includes('token')].join()")
            == ",0,false"
        )
        await browser.press("Sign out")
        await browser.shows("Token")
        assert await browser.run("sessionStorage.length") == 0
    finally:
        await admin.stop()
    browser.errors.clear()


async def test_a_person_signs_in_at_an_issuer(browser: Chromium):
    async with OidcIssuer(email="alice@example.com", email_verified=True) as issuer:
        access = WriteAccess(None, OidcLogin(issuer.url, CLIENT, ["alice@example.com"]))
        admin = admin_server(State(), "0.0.0.0", access=access)
        await admin.start()
        try:
            await browser.open(f"http://127.0.0.1:{admin.port}/ui#/denials")
            await browser.press("Sign in at 127.0.0.1")
            await browser.shows("Sign out")
            assert await browser.run("location.search + location.hash") == "#/denials"
            await browser.run("location.assign('?code=stolen&state=forged&error=call+this+number')")
            await browser.shows("This tab has begun no such login.")
            await browser.press("Sign out")
            await browser.run("Object.defineProperty(crypto, 'subtle', {value: undefined})")  # as by plain HTTP
            await browser.run("location.hash = '#/limits'")
            await browser.press("Sign in at 127.0.0.1")
            await browser.shows("A login needs a page by https")
        finally:
            await admin.stop()
    browser.errors.clear()


async def test_a_person_signs_in_and_consents_at_a_certified_provider(browser: Chromium, oidc_provider: str):
    needed("oidc-provider of npm", oidc_provider)
    port = free_port()
    access = WriteAccess(None, OidcLogin(f"http://127.0.0.1:{port}", CLIENT, ["group:staff"]))
    admin = admin_server(State(), "0.0.0.0", access=access)
    await admin.start()
    page = f"http://127.0.0.1:{admin.port}/ui"
    command = ["node", Path(__file__).parent / "programs/oidc_provider.mjs", oidc_provider, str(port), page]
    provider = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL)
    try:
        assert provider.stdout is not None
        assert await provider.stdout.readline() == b"listens\n"
        await browser.call("Network.setBlockedURLs", urls=["https://*"])  # its pages ask for a font
        await browser.open(f"{page}#/denials")
        await browser.press("Sign in at 127.0.0.1")
        await browser.press("[ Cancel ]")
        await browser.shows("The issuer has refused the login: access_denied End-User aborted interaction")
        await browser.press("Sign in at 127.0.0.1")
        await browser.until("document.forms[0]?.login")
        await browser.run("document.forms[0].login.value = 'alice'; document.forms[0].password.value = 'any'")
        await browser.run("document.forms[0].submit()")
        await browser.press("Continue")
        await browser.shows("Sign out")
        await browser.until("!document.querySelector('[name=token]')")
    finally:
        provider.kill()
        await provider.wait()
        await admin.stop()
        await browser.call("Network.clearBrowserCookies")
        await browser.call("Network.setBlockedURLs", urls=[])
    browser.errors.clear()


async def test_a_slow_stream_that_breaks_off_within_an_event_is_shown_as_far_as_it_came(browser: Chromium):
    """A stand-in for a gateway: ours does not cut its events."""
    line = {
        "kind": "request",
        "method": "GET",
        "authority": "a.test",
        "path": "/ü",
        "status": 200,
        "reason": "\u202edeneid",
    }
    event = f"event: exchange\ndata: {json.dumps(line, ensure_ascii=False)}\n\n".encode()

    async def live(request: web.Request) -> web.StreamResponse:
        assert request.cookies == {"session": "1"}  # that of a proxy in front that signs people in
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        cut = event.index("ü".encode()) + 1  # within a character
        for piece in (event[:cut], event[cut:-1], event[-1:] + b'event: lost\ndata: {"lost": 12}\n\n', event[:20]):
            await stream.write(piece)
            await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return stream

    async def file(request: web.Request) -> web.Response:
        answer = await page_file(request, is_open=True)
        answer.set_cookie("session", "1", httponly=True)
        return answer

    app = web.Application()
    app.add_routes([web.get("/live", live), *(web.get(path, file) for path in FILES)])
    async with TestServer(app) as server:
        await browser.open(f"http://127.0.0.1:{server.port}/ui#/live")
        await browser.shows("a.test/ü")
        await browser.shows("\\u{202e}deneid")
        await browser.shows("12 requests are not shown")
        await browser.shows("The stream has broken off: trying again")
        await browser.open("about:blank")
    browser.errors.clear()


async def test_it_says_that_the_gateway_is_gone_and_goes_on_when_it_is_back(browser: Chromium):
    admin = admin_server(State())
    await admin.start()
    await browser.open(f"http://127.0.0.1:{admin.port}/ui#/holds")
    await browser.shows("1 request waits")
    await admin.stop()
    seen = "document.dispatchEvent(new Event('visibilitychange'))"  # it asks at once, not after two seconds
    await browser.run(seen)
    await browser.shows("The gateway does not answer")
    again = admin_server(State(), port=admin.port)
    await again.start()
    await browser.run(seen)
    try:
        await browser.until("!document.querySelector('[role=alert]')")
    finally:
        await again.stop()
    browser.errors.clear()
