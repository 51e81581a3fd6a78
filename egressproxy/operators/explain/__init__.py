"""Explain and diff: decisions about requests that nobody sends, now and under another configuration."""
