"""Learning: the smallest policy that allows what clients were seen to do, and what was left out of it, and why."""
