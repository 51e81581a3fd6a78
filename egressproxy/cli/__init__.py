"""The command line. `main` has the verbs. `serving` begins the process that serves, without the parser."""

#: What the root of click's contexts has where the command line is the whole program.
PROGRAM = "egressproxy"
