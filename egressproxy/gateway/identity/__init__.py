"""Who asks: the identity of the clients of a listener, from what they show and where they come from."""
