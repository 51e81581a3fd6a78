"""The built-in limits. Those of everybody together have a file each and are one number."""
