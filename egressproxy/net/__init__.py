"""What sits on a socket in either direction: the TLS driver, coarse timers, body writing with flow control."""
