"""The Anthropic SDK: a message, then the same as a stream."""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="the-clients-own-key", max_retries=0, timeout=20)
asked = {"model": "messages-test", "max_tokens": 50, "messages": [{"role": "user", "content": "three small words"}]}
print("whole:", client.messages.create(**asked).content[0].text)
with client.messages.stream(**asked) as stream:
    print("stream:", "".join(stream.text_stream))
