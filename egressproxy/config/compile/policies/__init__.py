"""EgressPolicies: attachment to places, and merging."""
