"""TLS contexts, which a snapshot and its clusters make, and the roots, keys and callbacks of OpenSSL behind them."""
