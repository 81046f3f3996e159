"""Another aiokafka, in which something has another name, is refused at the start, not in the middle."""

import ast
import re
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.producer.transaction_manager import TransactionManager

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.library import PRIVATE, TESTED_VERSION, check_library
from pvbus.adapters.kafka.settings import KafkaSettings
from pvbus.core.errors import PermanentError

ROOT = Path(__file__).resolve().parents[3]


def test_the_locked_version_fits() -> None:
    """The version that the sentence names is the one that is locked, and it has all names."""
    locked = re.search(r"^aiokafka==(\S+)", (ROOT / "requirements/run.lock").read_text("utf-8"), re.M)
    assert locked is not None
    assert locked.group(1) == TESTED_VERSION
    check_library()


def test_every_private_name_is_checked() -> None:
    """Whatever the adapter uses of aiokafka with an underscore before it is in the list."""
    used: set[str] = set()
    own: set[str] = set()
    for path in (ROOT / "pvbus/adapters/kafka").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):
                is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
                (own if is_own else used).add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own.add(node.name)
    assert used - own <= {name for names in PRIVATE.values() for name in names}


@pytest.mark.parametrize(
    ("kind", "name", "missing"),
    [
        (AIOKafkaClient, "add_topic", "has no AIOKafkaClient.add_topic, which"),
        (AIOKafkaClient, "_get_conn_lock", "has no AIOKafkaClient._get_conn_lock, which"),
        (AIOKafkaProducer, "__init__", "AIOKafkaProducer._metadata, AIOKafkaProducer._message_accumulator"),
        (TransactionManager, "add_offsets_to_txn", "has no TransactionManager.add_offsets_to_txn, which"),
    ],
)
async def test_a_renamed_name_is_refused_before_anything_is_sent(
    kind: type, name: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what is missing, and the version to install."""
    monkeypatch.delattr(kind, name)
    with pytest.raises(PermanentError, match=re.escape(missing)) as refused:
        await KafkaBus.open(KafkaSettings(bootstrap=("nowhere:1",)))
    assert f"install aiokafka {TESTED_VERSION}" in str(refused.value)
