"""One process in another's place, without a moment in which nobody listens."""
