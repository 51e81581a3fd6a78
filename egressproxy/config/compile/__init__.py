"""Compiles resources to the IR (what is served) and to the status of every object.

Pure: no files, no sockets; the clock is read for condition times alone.
"""
