"""The states of a TlsStream.

A line of the table is what leads from one to the next; nothing else may happen:

    state       event    next        the event
    ----------  -------  ----------  --------------------------------------------------------------------------
    HANDSHAKE   done     JOINING     the peer is verified: `on_handshake` is told, and may close
    JOINING     join     OPEN        the protocol above is told of its connection
    OPEN        peer     PEER_ENDED  the peer's close_notify, and the protocol above keeps our direction
    OPEN        wait     ENDING      `write_eof` while records are unread, which OpenSSL would drop
    OPEN        end      ENDED       `write_eof`: our close_notify
    ENDING      end      ENDED       the records are read
    ENDING      peer     BOTH_ENDED  ours follows the peer's close_notify
    ENDED       peer     BOTH_ENDED
    PEER_ENDED  end      BOTH_ENDED
    HANDSHAKE   fail     FAILED      closed, aborted, or an error, before the protocol above has heard anything
    JOINING     fail     FAILED
    OPEN        close    CLOSED      closed, aborted, an error, or an end without close_notify
    PEER_ENDED  close    CLOSED
    ENDING      close    CLOSED
    ENDED       close    CLOSED
    BOTH_ENDED  close    CLOSED
    FAILED      close    CLOSED      the transport below is gone

In FAILED and CLOSED nothing is delivered or sent any more.
"""

from __future__ import annotations

from typing import Final

#: From FAILED on it is over.
HANDSHAKE: Final = 0
JOINING: Final = 1
OPEN: Final = 2
PEER_ENDED: Final = 3
ENDING: Final = 4
ENDED: Final = 5
BOTH_ENDED: Final = 6
FAILED: Final = 7
CLOSED: Final = 8
