"""egressproxy: an egress gateway data plane."""

__version__ = "0.1.0"
