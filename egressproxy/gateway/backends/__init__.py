"""How an exchange reaches a backend: clusters, retries, session persistence, mirrors, parents."""
