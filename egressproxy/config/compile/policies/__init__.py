"""EgressPolicies: which hold where, and what becomes of them together."""
