"""A cluster as the source of the configuration: list and watch in a process of its own, and what is written back."""
