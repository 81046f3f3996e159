"""Counts the failures of an event that are the event's own.

A receiver that is down fails every event: that is no reason to give any of them up. A failure counts against
an event only if the receiver has accepted another one since the event's failure before.
"""


class Trials:
    """The trials of one event. accepted: how many events the receiver accepted so far."""

    def __init__(self, accepted: int) -> None:
        self._accepted = accepted
        self.strikes = 0

    def failed(self, accepted: int) -> int:
        """Count a failure; return how many are the event's own."""
        if accepted > self._accepted:
            self.strikes += 1
            self._accepted = accepted
        return self.strikes
