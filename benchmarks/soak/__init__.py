"""Soak: one gateway, a mixed load with every fault that we can make, and whether anything grows."""
