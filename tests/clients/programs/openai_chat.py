"""The OpenAI SDK: a chat completion, then the same as a stream that is left as soon as it says [DONE]."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="the-clients-own-key", max_retries=0, timeout=20)
messages = [{"role": "user", "content": "three small words"}]
whole = client.chat.completions.create(model="gpt-test", messages=messages)
print("whole:", whole.choices[0].message.content)
pieces = client.chat.completions.create(model="gpt-test", messages=messages, stream=True)
print("stream:", "".join(piece.choices[0].delta.content or "" for piece in pieces))
