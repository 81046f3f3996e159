"""structlog, set up once per process: JSON for machines, columns on a terminal, always to stderr.

Libraries log through Python's own `logging`; what they say comes out in the same format, from WARNING on,
or all of it at level debug.
"""

import logging
import sys
from typing import Literal

import structlog

LogFormat = Literal["auto", "json", "console"]


class _Stderr(logging.Handler):
    """Writes to what stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def configure(level: str = "info", log_format: LogFormat = "auto") -> None:
    """Set up logging. `auto` is columns on a terminal and JSON elsewhere."""
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.dict_tracebacks if not console else structlog.processors.StackInfoRenderer(),
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _configure_foreign(number, shared, renderer)


def _configure_foreign(
    level: int, shared: list[structlog.typing.Processor], renderer: structlog.typing.Processor
) -> None:
    """Let libraries' records through the same processors, in place of what was set up before."""
    handler = _Stderr()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_name_component, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    for former in [former for former in root.handlers if isinstance(former, _Stderr)]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level if level < logging.INFO else max(level, logging.WARNING))


def _name_component(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Call a library's logger by its name, as our own components are."""
    record: logging.LogRecord = event["_record"]
    event["component"] = record.name
    return event


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger bound to a component's name."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=name)
    return logger
