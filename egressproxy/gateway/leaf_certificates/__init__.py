"""The certificates that clients are shown in tunnels that are opened."""
