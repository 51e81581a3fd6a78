"""What a gateway does under trouble: memory of what is idle or slow, and latency of its event loop."""
