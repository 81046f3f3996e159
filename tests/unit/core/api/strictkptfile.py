"""A Kptfile as Porch's server reads it: one field that it does not know is an error."""

from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.kptfile import FILE, Kptfile, read
from pvbus.core.api.packages import PackageCondition
from pvbus.core.errors import PermanentError
from pvbus.core.yaml import editor


class UnmetGate(NamedTuple):
    """A readiness gate whose condition is not True; status is "" when there is no such condition."""

    condition_type: str
    status: str
    message: str


def read_strictly(text: str) -> Kptfile:
    """Decode a Kptfile. Raises: PermanentError for a field that kpt's API does not have."""
    kptfile = read(text)
    if unknown := _unknown(editor.parse(text)[0].value, _everything(kptfile), ""):
        raise PermanentError(f'{FILE}: unknown field "{unknown}"', reason="InvalidKptfile")
    return kptfile


def unmet_gates(kptfile: Kptfile) -> list[UnmetGate]:
    """Return the readiness gates that are not met, in their order."""
    conditions = {condition.type: condition for condition in kptfile.status.conditions}
    found = [
        (gate, conditions.get(gate.condition_type, PackageCondition()))
        for gate in kptfile.info.readiness_gates
    ]
    return [UnmetGate(gate.condition_type, c.status, c.message) for gate, c in found if c.status != "True"]


def _everything(kptfile: Kptfile) -> Any:
    """Return all known fields of the parts that are there, empty ones too."""
    if isinstance(kptfile, msgspec.Struct):
        fields = msgspec.structs.fields(kptfile)
        return {field.encode_name: _everything(getattr(kptfile, field.name)) for field in fields}
    return [_everything(item) for item in kptfile] if isinstance(kptfile, tuple) else kptfile


def _unknown(value: Any, known: Any, path: str) -> str | None:
    """Find the first field that is in the value and not among the known ones."""
    if isinstance(value, dict) and isinstance(known, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else str(key)
            if str(key) not in known:
                return here if item is not None else None
            if found := _unknown(item, known[str(key)], here):
                return found
    if isinstance(value, list) and isinstance(known, list):
        for index, (item, other) in enumerate(zip((i for i in value if i is not None), known, strict=True)):
            if found := _unknown(item, other, f"{path}[{index}]"):
                return found
    return None
