"""The data plane of one process: its sockets, the swap of snapshots, the drain, and measures under overload."""
