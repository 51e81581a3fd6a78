"""Compiles resources to the IR and to the status of every object. Pure, but for the clock of condition times."""
