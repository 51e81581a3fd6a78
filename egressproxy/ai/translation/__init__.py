"""Translation between the APIs of AI providers: a request becomes one of another API, and the answer goes back.

Pure: bytes in, bytes out. `apis` says what is translated, `translator` does it. Each API has a reader and a writer for
requests, answers and streams; between them stands one neutral form, so that one API more is one room more. What a
reader does not know, or a writer cannot say, is refused with the name of its field: nothing is dropped in silence but
what docs/translation.md lists.
"""
