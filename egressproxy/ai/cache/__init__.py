"""Answers that are kept and given again."""
