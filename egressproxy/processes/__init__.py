"""The processes beside the one that serves: the loader, and workers."""
