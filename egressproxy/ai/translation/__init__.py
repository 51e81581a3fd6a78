"""Translation between the APIs of AI providers: a request becomes one of another API, and the answer goes back.

Pure: bytes in, bytes out. `apis` says what is translated, `translator` does it. Each API has a reader and a writer for
requests, answers and streams. They share one neutral form, so that another API needs one package. A field that a
reader does not know, or a writer cannot express, is refused by its name. docs/translation.md lists the fields that are
dropped.
"""
