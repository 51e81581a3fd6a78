"""What a process does when it has as much as it may have: of requests, of connections, of memory."""
