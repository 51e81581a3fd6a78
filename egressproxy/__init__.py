"""egressproxy: an egress gateway data plane."""

from egressproxy.build import run_sources

__version__ = "0.1.0"

run_sources()
