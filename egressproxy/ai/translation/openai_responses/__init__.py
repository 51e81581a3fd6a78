"""OpenAI's responses: `POST /v1/responses`."""
