"""Routing: a request's host, path, method, fields and query to the rule that serves it. Pure: no sockets, no awaits."""
