"""Workers: who serves the traffic, in this process or in several. `fleet` says what the application asks of them."""
