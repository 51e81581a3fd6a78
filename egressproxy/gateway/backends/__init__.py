"""How an exchange reaches a backend: connectors, retries, session persistence, mirrors, parents."""
