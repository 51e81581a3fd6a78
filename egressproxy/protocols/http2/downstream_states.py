"""The states of a request of a client of HTTP/2.

A line of the table is what leads from one to the next; nothing else may happen:

    state       event    next        the event
    ----------  -------  ----------  --------------------------------------------------------------------------
    RECEIVING   whole    RESPONDING  the end of the request's body; at once where it has none
    RESPONDING  listen   LISTENING   the exchange waits for what the client says in a tunnel
    LISTENING   heard    RESPONDING  that is here, or the client's end
    RESPONDING  detach   DETACHED    what is said belongs to a tunnel
    LISTENING   detach   DETACHED
    RECEIVING   finish   FINISHING   the exchange is over: what is left to say goes out, as the windows allow
    RESPONDING  finish   FINISHING
    RECEIVING   loss     LOST        reset by either side, or the connection is gone
    RESPONDING  loss     LOST
    LISTENING   loss     LOST
    DETACHED    loss     LOST        so it is, too, when the tunnel has ended
    FINISHING   loss     LOST        so it is, too, when all is said

Source: RFC 9113 section 5.1.
"""

from __future__ import annotations

from typing import Final

RECEIVING: Final = 0
RESPONDING: Final = 1
LISTENING: Final = 2
DETACHED: Final = 3
FINISHING: Final = 4
LOST: Final = 5
