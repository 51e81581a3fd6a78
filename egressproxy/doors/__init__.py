"""The doors of the products: what AI, Envoy's protocols and operators' tools register with the core."""
