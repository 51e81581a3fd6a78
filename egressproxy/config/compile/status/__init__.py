"""Conditions and warnings of what was compiled."""
