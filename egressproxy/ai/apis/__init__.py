"""What the messages of AI providers say: requests, whole answers, streams and errors. Pure: bytes in, values out.

`apis` tells which API a request is of. `request` and `answer` are views of whole bodies: what they say, and how it is
changed with every other byte left as it came. `streams` does the same for answers that are streamed. `shared` keeps
parsed bodies for the filters of one exchange.
"""
