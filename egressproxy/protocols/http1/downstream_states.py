"""The states of a client's HTTP/1 connection.

A line of the table is what leads from one to the next; nothing else may happen:

    state       event    next        the event
    ----------  -------  ----------  --------------------------------------------------------------------------
    IDLE        head     RESPONDING  a request without a body: an exchange begins
    IDLE        begin    RECEIVING   a request whose body is still to come; or what came is no request
    RECEIVING   whole    RESPONDING  the end of the request's body
    RESPONDING  listen   LISTENING   the exchange waits for what the client says behind its request (a tunnel)
    LISTENING   heard    RESPONDING  that is here, or the client's end
    RESPONDING  next     IDLE        the exchange is over, and the next request may come
    IDLE        detach   DETACHED    the transport is given away: the client speaks HTTP/2
    RESPONDING  detach   DETACHED    to a tunnel
    LISTENING   detach   DETACHED
    RECEIVING   detach   DETACHED
    IDLE        close    CLOSING     our last word is said, and the client has said all or need not read it
    RECEIVING   close    CLOSING
    RESPONDING  close    CLOSING
    LISTENING   close    CLOSING
    DETACHED    close    CLOSING
    IDLE        linger   LINGERING   our last word is said, but what the client still says would reset it
    RECEIVING   linger   LINGERING
    RESPONDING  linger   LINGERING
    LISTENING   linger   LINGERING
    DETACHED    linger   LINGERING
    IDLE        loss     LOST        the transport is gone
    RECEIVING   loss     LOST
    RESPONDING  loss     LOST
    LISTENING   loss     LOST
    DETACHED    loss     LOST
    CLOSING     loss     LOST
    LINGERING   loss     LOST
"""

from __future__ import annotations

from typing import Final

IDLE: Final = 0
RECEIVING: Final = 1
RESPONDING: Final = 2
LISTENING: Final = 3
DETACHED: Final = 4
LINGERING: Final = 5
CLOSING: Final = 6
LOST: Final = 7
