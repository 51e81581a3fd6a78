"""PassiveHealth: what a cluster remembers of the attempts at its backend, for those that could go elsewhere.

A backend is put aside when it cannot be reached or does not answer in time, when it has answered with a code of failure
several times in a row, and when it asks for a pause. The hold-off begins at one second and doubles with each failed
trial. When it is over, one request tries the backend; meanwhile, the others still go elsewhere. So a backend that is
down costs one attempt for each hold-off, and no request more than one. A success ends it at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The first hold-off, and the longest that failures alone lead to.
MIN_HOLD_OFF_S: Final = 1.0
MAX_HOLD_OFF_S: Final = 60.0
#: The longest pause that a backend may ask for: a limit that is back in a day is looked at again before.
MAX_ASIDE_S: Final = 300.0
#: Answers with a code of failure in a row. One alone says little of the next request.
FAILURES: Final = 3


@dataclass(slots=True, eq=False, repr=False)
class PassiveHealth:
    """The memory of one backend. Times are monotonic seconds."""

    aside_until: float = 0.0
    _asked_until: float = 0.0  # the end of the pause that the backend asked for
    _failures: int = 0  # in a row
    _hold_off_s: float = 0.0  # the last one; 0.0 after a success
    _is_on_trial: bool = False  # one request tries the backend; a hold-off keeps the others away

    def is_aside(self, now: float) -> bool:
        """Whether requests should go elsewhere. Changes nothing."""
        return now < self.aside_until

    def begin(self, now: float) -> None:
        """An attempt begins. After a hold-off it is a trial: others stay away until it has ended, or for as long."""
        if self._hold_off_s and now >= self.aside_until:
            self._is_on_trial = True
            self.aside_until = now + self._hold_off_s

    def succeeded(self) -> bool:
        """The backend is as good as any, after a pause that it asked for. Returns whether this ends a hold-off or its
        trial.
        """
        if not self._failures:
            return False
        is_back = self.aside_until > self._asked_until
        self._failures = 0
        self._hold_off_s = 0.0
        self.aside_until = self._asked_until
        self._is_on_trial = False
        return is_back

    def failed(self, now: float, *, is_certain: bool, asked_s: float = 0.0) -> float:
        """An attempt has failed. `is_certain`: the next one would fail as well, as far as one can know.

        `asked_s`: the pause that the backend asks for, 0.0 for none. Of failures that end together, one counts.
        Returns the seconds for which this puts the backend aside; 0.0 where it is not, or was before.
        """
        self._failures += 1
        was_aside = now < self.aside_until and not self._is_on_trial
        if asked_s > 0:
            self._failures = max(self._failures, FAILURES)
            self._hold_off_s = max(self._hold_off_s, MIN_HOLD_OFF_S)
            self._is_on_trial = False
            self._asked_until = max(self._asked_until, now + min(asked_s, MAX_ASIDE_S))
            self.aside_until = max(self.aside_until, self._asked_until)
            return 0.0 if was_aside else self.aside_until - now
        if was_aside or not (is_certain or self._failures >= FAILURES or self._hold_off_s):
            return 0.0
        self._is_on_trial = False
        self._hold_off_s = min(max(self._hold_off_s * 2, MIN_HOLD_OFF_S), MAX_HOLD_OFF_S)
        self.aside_until = now + self._hold_off_s
        return self._hold_off_s
