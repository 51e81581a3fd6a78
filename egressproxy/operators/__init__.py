"""Operators' tools: explanations, approval, audit, and what clients may ask at `egress.internal`."""
