"""egress.internal: clients ask what they may reach, and what is left of their limits."""
