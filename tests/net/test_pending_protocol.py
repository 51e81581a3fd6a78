"""What a parked transport keeps, and in which order it hands it over."""

from __future__ import annotations

from egressproxy.net.pending_protocol import PendingProtocol


class Transport:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.closing = False

    def pause_reading(self) -> None:
        self.said.append("pause")

    def resume_reading(self) -> None:
        self.said.append("resume")

    def set_protocol(self, protocol: object) -> None:
        self.said.append("set")

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.said.append("close")


class Receiver:
    def __init__(self, transport: Transport, *, pauses: bool = False, keeps: bool = True) -> None:
        self.transport, self.pauses, self.keeps = transport, pauses, keeps

    def connection_made(self, transport: object) -> None:
        self.transport.said.append("made")

    def data_received(self, data: bytes) -> None:
        self.transport.said.append(data.decode())
        if self.pauses:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.transport.said.append("eof")
        return self.keeps

    def connection_lost(self, error: Exception | None) -> None:
        self.transport.said.append(f"lost {error}")


def parked() -> tuple[PendingProtocol, Transport]:
    made, transport = PendingProtocol(), Transport()
    made.connection_made(transport)  # type: ignore[arg-type]
    return made, transport


def test_what_came_is_handed_over_in_order_and_reading_goes_on():
    one, transport = parked()
    one.data_received(b"a")
    one.data_received(b"b")
    transport.said.clear()
    one.hand_over(Receiver(transport))  # type: ignore[arg-type]
    assert transport.said == ["set", "made", "resume", "a", "b"]


def test_a_receiver_that_pauses_stays_paused():
    one, transport = parked()
    one.data_received(b"a")
    one.hand_over(Receiver(transport, pauses=True))  # type: ignore[arg-type]
    assert transport.said[-1] == "pause"


def test_an_end_is_handed_over_and_closes_where_the_receiver_says_so():
    for keeps in (True, False):
        one, transport = parked()
        assert one.eof_received(), "a half-open transport is kept"
        one.hand_over(Receiver(transport, keeps=keeps))  # type: ignore[arg-type]
        assert transport.said == ["set", "made", "eof"] + ([] if keeps else ["close"])


def test_a_loss_is_handed_over_behind_what_came():
    one, transport = parked()
    one.data_received(b"a")
    one.connection_lost(OSError("x"))
    transport.closing = True
    transport.said.clear()
    one.hand_over(Receiver(transport))  # type: ignore[arg-type]
    assert transport.said == ["set", "made", "a", "lost x"]
