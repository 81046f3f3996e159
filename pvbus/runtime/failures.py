"""Errors of concurrent tasks."""

from collections.abc import Iterator


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors inside groups of errors, in order."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from causes(each)
    else:
        yield error
