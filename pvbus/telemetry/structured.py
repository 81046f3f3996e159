"""structlog, imported without rich. Import it from here: `from pvbus.telemetry.structured import structlog`.

structlog imports rich, where that is installed, for traces that are not used here, as they would show local
variables. That is a tenth of the start of a process. So an import of rich fails meanwhile; a later one finds
it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without_rich() -> Iterator[None]:
    """Have imports not find rich, unless it is imported already."""
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # so says Python that there is no such module
    try:
        yield
    finally:
        del sys.modules["rich"]


with _without_rich():
    import structlog

__all__ = ["structlog"]
