"""EgressPolicies: which ones hold at a place, and what they mean together."""
