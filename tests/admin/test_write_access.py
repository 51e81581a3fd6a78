"""Who may write to the admin API."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from egressproxy.admin.status import ApiError
from egressproxy.admin.write_access import WriteAccess

TOKEN = "0123456789abcdef"


async def refused(access: WriteAccess, **fields: str) -> int:
    """The status; 0 for one who may."""
    request: Any = SimpleNamespace(headers=fields, remote="127.0.0.1")
    try:
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


@pytest.mark.parametrize(
    ("said", "status"),
    [("Bearer " + TOKEN, 0), ("bearer " + TOKEN, 0), ("Bearer x", 401), ("Basic " + TOKEN, 401), ("", 401),
     ("Bearer \udcff", 401)],
)  # fmt: skip
async def test_who_knows_the_token_writes(tmp_path: Path, said: str, status: int):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert await refused(WriteAccess(file), Authorization=said) == status


async def test_with_the_token_it_may_come_through_the_proxy_that_adds_tls(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    assert await refused(WriteAccess(file), Authorization=f"Bearer {TOKEN}", Via="1.1 front") == 0
