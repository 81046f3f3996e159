"""Whether an API server answers and accepts our credentials: the outcomes of all requests to it.

An answer is any response but 401 and 5xx: a refusal, such as 403 or 429, shows that it is there and
knows who asks. A 5xx may come from a load balancer whose server is gone.
"""

import time
from collections.abc import Callable


class Reach:
    """Records the outcomes of requests. One serves all clients that share a connection."""

    def __init__(self, server: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Know of no request yet.

        server: the URL of the server, for messages
        """
        self.server = server
        self.error = ""
        """What became of the last request, "" if it was answered."""
        self._monotonic = monotonic
        self._answered_at: float | None = None
        self._failing_since: float | None = None

    def note_response(self, code: int, error: Exception | None = None) -> None:
        """Note a response.

        error: what a code of 400 or above means, None for others
        """
        if code == 401 or code >= 500:
            assert error is not None
            self.note_failure(error)
        else:
            self._answered_at, self._failing_since, self.error = self._monotonic(), None, ""

    def note_failure(self, error: Exception) -> None:
        """Note a request without an answer.

        error: says which request, why it failed, and what to check
        """
        self.error = str(error)
        if self._failing_since is None:
            self._failing_since = self._monotonic()

    @property
    def has_answered(self) -> bool:
        """Whether a request was ever answered."""
        return self._answered_at is not None

    @property
    def quiet_seconds(self) -> float:
        """Time since the last answer; infinity before the first."""
        return self._monotonic() - self._answered_at if self._answered_at is not None else float("inf")

    @property
    def failing_seconds(self) -> float:
        """Time since the first of the requests that failed without an answer after it; 0 if there is none."""
        return self._monotonic() - self._failing_since if self._failing_since is not None else 0.0
