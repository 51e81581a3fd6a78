"""Remote processors: servers of the operator that look at exchanges and change them, in Envoy's protocol or by HTTP."""
