"""What each stage of a request costs, without sockets: `python -m benchmarks.micro --help`."""
