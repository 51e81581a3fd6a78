"""Limits on tokens and money, and limits for each model."""
