"""Who may write to the admin API."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict

from egressproxy.admin.status import ApiError
from egressproxy.admin.write_access import WriteAccess, is_of_other_page

TOKEN = "0123456789abcdef"


async def refused(access: WriteAccess, remote: str = "127.0.0.1", **fields: str) -> int:
    """The status; 0 for one who may."""
    headers = CIMultiDict({name.replace("_", "-"): value for name, value in fields.items()})
    request: Any = SimpleNamespace(headers=headers, remote=remote, content_type=fields.get("Content_Type", ""))
    if is_of_other_page(request):  # the server has refused it
        return 403
    try:
        await access.check_reader(request, is_loopback=True)
        await access.check(request)
    except ApiError as error:
        return error.code
    return 0


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 0),
        ({"Origin": "null"}, 403),
        *(
            ({field: "10.0.0.1"}, 403)
            for field in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
        ),
    ],
)
async def test_without_a_token_programs_of_this_machine_write_themselves(fields: dict[str, str], status: int):
    assert await refused(WriteAccess(None), **fields) == status


@pytest.mark.parametrize(("remote", "status"), [("::1", 0), ("127.9.9.9", 0), ("10.0.0.9", 403), ("fe80::1", 403)])
async def test_this_machine_has_more_than_one_address_of_loopback(remote: str, status: int):
    assert await refused(WriteAccess(None), remote) == status


@pytest.mark.parametrize(
    ("said", "status"),
    [("Bearer " + TOKEN, 0), ("bearer " + TOKEN, 0), ("Bearer x", 401), ("Basic " + TOKEN, 401), ("", 401),
     ("Bearer \udcff", 401)],
)  # fmt: skip
async def test_who_knows_the_token_writes(tmp_path: Path, said: str, status: int):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert await refused(WriteAccess(file), Authorization=said) == status


@pytest.mark.parametrize("text", [None, "short"])
async def test_strangers_do_not_learn_where_the_token_is(tmp_path: Path, text: str | None):
    file = tmp_path / "token"
    if text:
        file.write_text(text)
    with pytest.raises(ApiError) as caught:
        await WriteAccess(file).check(SimpleNamespace(headers=CIMultiDict(Authorization="Bearer x")))  # type: ignore[arg-type]
    assert str(file) not in str(caught.value)
    assert "the token" in str(caught.value)


async def test_with_the_token_it_may_come_through_the_proxy_that_adds_tls(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    assert await refused(WriteAccess(file), Authorization=f"Bearer {TOKEN}", Via="1.1 front") == 0


PAGE = {
    "Host": "127.0.0.1:15900", "Origin": "http://127.0.0.1:15900", "Sec_Fetch_Site": "same-origin",
    "X_Egressproxy": "page", "Content_Type": "application/json",
}  # fmt: skip


async def test_the_admin_page_writes_as_programs_of_this_machine_do():
    assert await refused(WriteAccess(None), **PAGE) == 0
    assert (
        await refused(WriteAccess(None), **{**PAGE, "Host": "localhost:15900", "Origin": "http://localhost:15900"}) == 0
    )


@pytest.mark.parametrize(
    "other",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:8000"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": None},
        {"Host": "127.0.0.1:15900, evil.example"},
        {"X_Egressproxy": None},
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/x-www-form-urlencoded"},
        {"Content_Type": "multipart/form-data"},
        {"Content_Type": None},
        {"Via": "1.1 front"},
        {"X_Forwarded_For": "10.0.0.1"},
    ],
    ids=str,
)
async def test_no_other_page_writes(other: dict[str, str | None]):
    fields = {name: value for name, value in {**PAGE, **other}.items() if value is not None}
    assert await refused(WriteAccess(None), **fields) == 403


async def test_of_another_machine_the_page_writes_with_the_token_alone(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    page = {**PAGE, "Host": "gateway:15900", "Origin": "http://gateway:15900", "Authorization": f"Bearer {TOKEN}"}
    del page["Sec_Fetch_Site"]  # browsers send it to this machine, and by TLS
    assert await refused(WriteAccess(file), "10.0.0.9", **page) == 0
    assert await refused(WriteAccess(file), "10.0.0.9", **{**page, "Origin": "http://evil.example:15900"}) == 403
    assert await refused(WriteAccess(file), "10.0.0.9", **{**page, "Authorization": ""}) == 401
    assert await refused(WriteAccess(file), "10.0.0.9", **page, Sec_Fetch_Site="same-site") == 403
    assert await refused(WriteAccess(None), "10.0.0.9", **page) == 403
