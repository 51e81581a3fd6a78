"""Credentials of the gateway: where a value comes from, where it is put, and what it is bound to."""
