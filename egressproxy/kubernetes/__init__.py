"""The gateway in a Kubernetes cluster: what it may do there."""
