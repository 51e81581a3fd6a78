"""The files of the admin page, as the admin server serves them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from egressproxy.admin import ui
from egressproxy.admin.server import AdminServer, Surface
from egressproxy.admin.write_access import WriteAccess
from tests.admin.kit import State, admin_server, ask


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, _ in ui.FILES.values():
        (tmp_path / name).write_text(f"<{name}>")
    monkeypatch.setattr(ui, "FOLDER", tmp_path)
    return tmp_path


async def test_every_file_has_its_type_and_may_load_nothing_from_elsewhere(bundle: Path, admin: AdminServer):
    for path, (name, content_type) in ui.FILES.items():
        answer = await ask(admin, path)
        assert (answer.status, answer.body.decode()) == (200, f"<{name}>")
        assert answer.fields["content-type"] == content_type
        assert answer.fields["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
            " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        assert answer.fields["cache-control"] == "no-cache"
        assert answer.fields["x-content-type-options"] == "nosniff"
        assert (
            answer.fields["cross-origin-opener-policy"]
            == answer.fields["cross-origin-resource-policy"]
            == "same-origin"
        )


async def test_a_file_that_the_browser_has_is_not_sent_again(bundle: Path, admin: AdminServer):
    mark = (await ask(admin, "/ui/page.js")).fields["etag"]
    again = await ask(admin, "/ui/page.js", extra=f"If-None-Match: {mark}\r\n")
    assert (again.status, again.body) == (304, b"")
    (bundle / "page.js").write_text("newer")
    assert (await ask(admin, "/ui/page.js", extra=f"If-None-Match: {mark}\r\n")).body == b"newer"


async def test_other_answers_keep_their_policy(bundle: Path, admin: AdminServer):
    answer = await ask(admin, "/explain?name=x")
    assert answer.fields["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert answer.fields["cache-control"] == "no-store"


async def test_a_path_below_that_is_no_file_of_the_page_is_not_read(bundle: Path, admin: AdminServer):
    (bundle / "secret").write_text("CANARY")
    for path in ("/ui/secret", "/ui/../ui/secret", "/ui/index.html", "/uix", "/ui//page.js"):
        assert (await ask(admin, path)).status == 404, path
    moved = await ask(admin, "/ui/")
    assert (moved.status, moved.fields["location"]) == (308, "../ui")


async def test_a_checkout_without_the_bundle_names_what_makes_it(
    tmp_path: Path, admin: AdminServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ui, "FOLDER", tmp_path / "missing")
    answer = await ask(admin, "/ui")
    assert answer.status == 404
    assert "make page" in answer.json()["message"]


async def test_the_page_is_read_and_never_written(bundle: Path, admin: AdminServer):
    assert (await ask(admin, "/ui", method="HEAD")).status == 200
    assert (await ask(admin, "/ui", method="POST")).status == 405


async def test_a_page_whose_name_was_rebound_gets_no_page(bundle: Path, admin: AdminServer):
    assert (await ask(admin, "/ui", host="evil.example")).status == 403


@pytest.mark.parametrize("has_token", [False, True], ids=["no token", "token"])
async def test_on_the_network_the_page_needs_a_token_of_the_gateway(bundle: Path, tmp_path: Path, has_token: bool):
    made = admin_server(State(), "0.0.0.0", access=WriteAccess(tmp_path / "token" if has_token else None))
    await made.start()
    made.host = "127.0.0.1"
    answer = await ask(made, "/ui", host="gateway:15900")
    await made.stop()
    if has_token:
        assert answer.status == 200
    else:
        assert answer.status == 403
        assert "--api-token-file" in answer.json()["message"]


async def test_the_address_of_metrics_has_no_page(bundle: Path):
    made = admin_server(State(), surface=Surface.METRICS)
    await made.start()
    answer = await ask(made, "/ui")
    await made.stop()
    assert answer.status == 404


def test_a_gateway_whose_page_nobody_opens_has_nothing_of_it():
    for file in (*Path(ui.__file__).parent.glob("*.py"), Path(ui.__file__).parents[1] / "app.py"):
        imported = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not any("admin.ui" in ast.unparse(node) or "admin import ui" in ast.unparse(node) for node in imported)
