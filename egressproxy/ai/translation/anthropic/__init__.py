"""Anthropic's messages: `POST /v1/messages`."""
