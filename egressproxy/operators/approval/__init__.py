"""Requests that wait until a person has approved or denied them."""
