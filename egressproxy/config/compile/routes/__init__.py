"""Routes: attachment, rules, filters and backendRefs."""
