"""What `egressproxy learn` makes of a recorded day."""
