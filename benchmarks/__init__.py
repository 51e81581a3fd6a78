"""Side-by-side measurements of egressproxy and other proxies: `python -m benchmarks --help`. See docs/benchmarks.md."""
