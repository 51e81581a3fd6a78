"""Clients of the MCP SDK: python mcp_oauth_client.py URL legacy|2026-07-28|oauth [AUTHORIZATION]. Prints JSON.

A client can ask its user to open a URL: `opened` are those that the user did not want to open.

The first two know nothing of OAuth, and show AUTHORIZATION; `oauth` authorizes itself, in a browser of its own.
"""

import asyncio
import json
import sys
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import Client
from mcp.client import InputRequiredRoundsExceededError
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult


class Memory(TokenStorage):
    tokens = client_info = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client_info

    async def set_client_info(self, client_info):
        self.client_info = client_info


def oauth(url):
    answers = []

    async def browse(target):
        async with httpx2.AsyncClient(trust_env=False) as browser:
            back = (await browser.get(target)).headers["location"]
        answers.append(parse_qs(urlsplit(back).query))

    async def come_back():
        found = answers.pop()
        return AuthorizationCodeResult(code=found["code"][0], state=found["state"][0])

    metadata = OAuthClientMetadata(redirect_uris=["http://127.0.0.1:1/callback"], client_name="client")
    return OAuthClientProvider(url, metadata, Memory(), redirect_handler=browse, callback_handler=come_back)


opened = []


async def decline(_context, asked):
    opened.append([asked.mode, asked.url])
    return ElicitResult(action="decline")


async def main(url, kind, authorization=""):
    fields = {"Authorization": authorization} if authorization else {}
    auth = oauth(url) if kind == "oauth" else None
    async with httpx2.AsyncClient(headers=fields, auth=auth, trust_env=False) as http:
        transport = streamable_http_client(url, http_client=http)
        try:
            mode = "legacy" if kind == "oauth" else kind
            async with Client(transport, mode=mode, elicitation_callback=decline) as client:
                return {"said": (await client.call_tool("whoami", {})).content[0].text}
        except MCPError as error:
            return {"code": error.code, "message": error.message, "data": error.error.data}


def innermost(error):
    return innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


try:
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
except Exception as error:
    found = innermost(error)
    if isinstance(found, InputRequiredRoundsExceededError):
        print(json.dumps({"opened": opened}))
    elif isinstance(found, MCPError):
        print(json.dumps({"code": found.code, "message": found.message, "data": found.error.data}))
    else:
        raise
