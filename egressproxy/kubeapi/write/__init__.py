"""Writes to the admin API: what an object becomes. Belongs to the process that loads."""
