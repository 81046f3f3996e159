"""What all controllers share: topics, the states of the keys of each lease, and defaults for defects."""

from collections.abc import Callable, Iterable
from typing import ClassVar, Generic, TypeVar

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.markers import SyncView
from pvbus.core.kernel.topics import broadcast_of, inputs_of, memory_of, pausable_of

State = TypeVar("State")


class ServiceController:
    """A controller with the topics of its service. See `pvbus.core.kernel.effects.Controller`.

    The rows of most services are short, and nobody can act on a defect of ours but by the log: so a row that
    the bus refuses, or a decision that fails, is logged by the shell alone.
    """

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    pausable: ClassVar[tuple[str, ...]]
    memory: ClassVar[tuple[str, ...]]
    broadcast: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if name := getattr(cls, "name", ""):
            cls.inputs, cls.pausable = inputs_of(name), pausable_of(name)
            cls.memory, cls.broadcast = memory_of(name), broadcast_of(name)

    def note_refusal(self, partition: int, puts: tuple[Put, ...], error: PermanentError) -> Iterable[str]:
        return ()

    def failure_rows(self, partition: int, key: str, message: str, now: float) -> tuple[Put, ...]:
        return ()


class KeyedController(ServiceController, Generic[State]):
    """A controller with one state per key of a lease.

    listed: the owned topics whose markers say that a kind is listed to its end.
    """

    listed: ClassVar[tuple[str, ...]] = ()

    def __init__(self, new_state: Callable[[str], State]) -> None:
        """new_state: returns the state of a key that has none yet."""
        self._new_state = new_state
        self._tables: dict[int, dict[str, State]] = {}
        self._sync: dict[int, dict[str, SyncView]] = {}

    def open(self, partition: int) -> None:
        self._tables[partition] = {}
        self._sync[partition] = {topic: SyncView(1) for topic in self.listed}

    def close(self, partition: int) -> None:
        self._tables.pop(partition, None)
        self._sync.pop(partition, None)

    def keys(self, partition: int) -> Iterable[str]:
        return [key for key, state in self._tables.get(partition, {}).items() if self.has_work(state)]

    @staticmethod
    def has_work(state: State) -> bool:
        """Return whether there is anything to decide for a key of this state after a lease."""
        return True

    def state(self, partition: int, key: str) -> State | None:
        """Return the state of a key of a lease that is held."""
        return self._tables[partition].get(key)

    def _ensure_state(self, partition: int, key: str) -> State:
        """Return the state of a key; make it if there is none."""
        table = self._tables[partition]
        state = table.get(key)
        if state is None:
            state = table[key] = self._new_state(key)
        return state

    def _all_keys(self) -> list[str]:
        return [key for partition in self._tables for key in self.keys(partition)]

    def _load_marker(self, topic: str, partition: int, key: str, value: bytes | None) -> bool:
        """Apply a marker of a lease that is held; return whether it says anything new."""
        view = self._sync[partition].get(topic)
        return view is not None and view.load(partition, key, value)

    def _is_listed(self, topic: str, partition: int, kind: str, namespace: str) -> bool:
        """Return whether an object of this kind that the topic lacks does not exist."""
        return self._sync[partition][topic].ok(kind, namespace)
