"""Active health checks: requests of the gateway to its backends, beside those of clients."""
