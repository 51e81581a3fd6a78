"""Explaining: what would become of a request, and which decisions another configuration would make the other way."""
