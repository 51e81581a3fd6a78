"""Envoy's protocols at both ends: external processing, external authorization, and the server for Envoy's filters."""
