"""The states of a SocketTransport.

A line of the table is what leads from one to the next; nothing else may happen:

    state       event    next        the event
    ----------  -------  ----------  ---------------------------------------------------------------
    OPEN        peer     PEER_ENDED  the peer has ended its side (FIN), and the protocol keeps ours
    OPEN        end      ENDED       `write_eof`: our end follows what is unsent
    PEER_ENDED  end      BOTH_ENDED
    ENDED       peer     BOTH_ENDED
    OPEN        close    CLOSING     `close`, or an end of the peer that the protocol does not outlive
    PEER_ENDED  close    CLOSING
    ENDED       close    CLOSING
    BOTH_ENDED  close    CLOSING
    OPEN        finish   CLOSED      `abort`, a reset, or an error of the socket
    PEER_ENDED  finish   CLOSED
    ENDED       finish   CLOSED
    BOTH_ENDED  finish   CLOSED
    CLOSING     finish   CLOSED      the same, or all is sent
    CLOSED      told     GONE        `connection_lost` at the end of the turn, and then the socket is closed
    OPEN        detach   GONE
    PEER_ENDED  detach   GONE
    ENDED       detach   GONE
    BOTH_ENDED  detach   GONE
"""

from __future__ import annotations

from typing import Final

#: From CLOSING on it is closing.
OPEN: Final = 0
PEER_ENDED: Final = 1
ENDED: Final = 2
BOTH_ENDED: Final = 3
CLOSING: Final = 4
CLOSED: Final = 5
GONE: Final = 6
