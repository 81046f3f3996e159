"""Tokens for Kafka's OAUTHBEARER, as its client asks for them.

Apart from `settings`, which is read where no aiokafka is imported.
"""

import asyncio
from pathlib import Path

from aiokafka.abc import AbstractTokenProvider


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Reads a file for each connection: others replace it.

    The broker refuses what is no text; an error of ours would end the library's task that reads metadata.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def token(self) -> str:
        text = await asyncio.to_thread(self._path.read_text, encoding="utf-8", errors="replace")
        return text.strip()
