"""The Kubernetes-shaped API of the admin address. The gateway runs without it."""
