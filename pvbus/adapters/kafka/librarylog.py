"""What the library logs more often than anybody reads it."""

import logging

_COORDINATOR = logging.getLogger("aiokafka.consumer.group_coordinator")
_TALKATIVE = (
    "aiokafka",
    "aiokafka.conn",
    "aiokafka.consumer.fetcher",
    _COORDINATOR.name,
    "aiokafka.producer.sender",
)
_REBALANCING = "because it is rebalancing"

REPEAT_SECONDS = 10.0
"""How often the same sentence is let through: shorter, and a broker that is away fills the logs, as each
connection of each worker tells of it ten times a second; longer, and it looks as if that were over."""

SENTENCES_MAX = 200
"""How many sentences are remembered: those about each broker, but not every exception's text for ever."""


class _Usual(logging.Filter):
    """Heartbeats are how members learn of a rebalance: it is a worker that came or went, and no failure."""

    def filter(self, record: logging.LogRecord) -> bool:
        return _REBALANCING not in str(record.msg)


class _Repeated(logging.Filter):
    """Lets the same sentence through now and then, with how often it came between."""

    def __init__(self) -> None:
        super().__init__()
        self._let_through: dict[str, float] = {}
        self._held_back: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        sentence = record.getMessage()
        if record.created - self._let_through.get(sentence, 0.0) < REPEAT_SECONDS:
            self._held_back[sentence] = self._held_back.get(sentence, 0) + 1
            return False
        if len(self._let_through) >= SENTENCES_MAX:
            self._let_through.clear()
            self._held_back.clear()
        self._let_through[sentence] = record.created
        if times := self._held_back.pop(sentence, 0):
            record.msg, record.args = f"{sentence} (and {times} times before)", ()
        return True


_usual = _Usual()
_repeated = _Repeated()


def leave_out_the_usual() -> None:
    """Keep it out of the log, below level debug of the library's own. May be called again."""
    if _COORDINATOR.getEffectiveLevel() <= logging.DEBUG:
        return
    _COORDINATOR.addFilter(_usual)
    for name in _TALKATIVE:
        logging.getLogger(name).addFilter(_repeated)
