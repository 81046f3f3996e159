"""Counts the arrows between the rooms of `pvbus/core`: `python -m tests.tools.arrows [--list]`.

A room is a folder that holds modules. An arrow leads from a room to another one of which it imports
something, be it for its types only. Every room may stand on the kernel, the API types and the errors: arrows
to these are not counted. Three things end `make check`:

- more arrows than there were last (`ARROWS_MAX`): who removes some lowers the limit
- an arrow that leads back up the layers, or into the wing beside, and a circle of rooms
- an arrow from a service to another one

--list prints the arrows, with the modules at both ends.
"""

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pvbus.core.platform.solver.connected import strongly_connected

CHECKOUT = Path(__file__).parents[2]
CORE = "pvbus.core"
ARROWS_MAX = 36
LAYERS = (("web",), ("platform", "promotion"), ("variants",), ("kernel",), ("api",), ("cel", "yaml"), ("",))
"""Folders of the core from the top; the last are its own modules, as `errors`."""
FOUNDATION = ("kernel", "api", "")
SERVICES = (
    *("variants.ingest", "variants.unroll", "variants.render", "variants.inject", "variants.conditions"),
    *("variants.sink", "promotion.promote", "promotion.rollout", "promotion.release"),
    *("platform.resolve", "platform.establish"),
)


class Arrow(NamedTuple):
    """Rooms, by their folders with dots below `pvbus.core`."""

    room: str
    imported: str


Arrows = Mapping[Arrow, set[tuple[str, str]]]
"""With the modules at both ends."""


def arrows_of(sources: Mapping[str, str], rooms: Mapping[str, str]) -> Arrows:
    """Return the arrows.

    sources: text by module
    rooms: room by module
    """
    arrows: dict[Arrow, set[tuple[str, str]]] = defaultdict(set)
    for module, text in sources.items():
        for imported in imports_of(text, rooms):
            if rooms[module] != rooms[imported]:
                arrows[Arrow(rooms[module], rooms[imported])].add((module, imported))
    return arrows


def module_of(path: Path) -> str:
    """Return the name of a file of this checkout, as imports have it."""
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(text: str, modules: Iterable[str]) -> set[str]:
    """Return those of the modules that a text imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            modules_inside = inside.intersection(modules)
            names |= modules_inside
            if len(modules_inside) < len(inside):
                names.add(node.module)
    return names.intersection(modules)


def counted(arrows: Iterable[Arrow]) -> list[Arrow]:
    """Return the arrows that do not lead to what every room may stand on."""
    return sorted(arrow for arrow in arrows if _folder(arrow.imported) not in FOUNDATION)


def _folder(room: str) -> str:
    return room.partition(".")[0]


def arrows_up(arrows: Iterable[Arrow]) -> list[Arrow]:
    """Return the arrows to a layer above, or to another folder of the same layer."""
    layer = {folder: number for number, folders in enumerate(LAYERS) for folder in folders}
    return sorted(
        arrow
        for arrow in arrows
        if _folder(arrow.room) != _folder(arrow.imported)
        and layer[_folder(arrow.room)] >= layer[_folder(arrow.imported)]
    )


def circles(arrows: Iterable[Arrow]) -> list[tuple[str, ...]]:
    """Return the groups of rooms that lead to each other."""
    edges: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for room, imported in arrows:
        edges["", room].append(("", imported))
        edges.setdefault(("", imported), [])
    return [tuple(room for _, room in group) for group in strongly_connected(edges) if len(group) > 1]


def _service_of(room: str) -> str:
    return next((service for service in SERVICES if f"{room}.".startswith(f"{service}.")), "")


def between_services(arrows: Iterable[Arrow]) -> list[Arrow]:
    """Return the arrows from a service to another one, with the folders in them."""
    return sorted(
        arrow
        for arrow in arrows
        if _service_of(arrow.room)
        and _service_of(arrow.imported)
        and _service_of(arrow.room) != _service_of(arrow.imported)
    )


def arrows_of_core() -> Arrows:
    """Return the arrows of this checkout."""
    sources, rooms = {}, {}
    for path in (CHECKOUT / "pvbus" / "core").rglob("*.py"):
        module = module_of(path)
        sources[module] = path.read_text()
        rooms[module] = ".".join(path.parent.relative_to(CHECKOUT / "pvbus" / "core").parts)
    return arrows_of(sources, rooms)


def _problems(arrows: Arrows) -> Iterator[str]:
    for arrow in arrows_up(arrows):
        yield f"{arrow.room} imports {arrow.imported}, which is not below it"
    for circle in circles(arrows):
        yield f"rooms that lead to each other: {', '.join(circle)}"
    for arrow in between_services(arrows):
        yield f"the service {arrow.room} imports the service {arrow.imported}"
    if (count := len(counted(arrows))) > ARROWS_MAX:
        yield (
            f"{count} arrows, and the limit is {ARROWS_MAX}: move what is in the wrong room (--list says who "
            f"imports what), or raise the limit in {Path(__file__).name} and say why in the commit"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the arrows, too")
    options = parser.parse_args()
    arrows = arrows_of_core()
    if options.list:
        for arrow in counted(arrows):
            print(f"{arrow.room} -> {arrow.imported}")
            for module, imported in sorted(arrows[arrow]):
                print(f"    {module.removeprefix(CORE)[1:]} imports {imported.removeprefix(CORE)[1:]}")
    rooms = {room for arrow in arrows for room in arrow}
    print(
        f"{len(counted(arrows))} arrows between {len(rooms)} rooms, {len(arrows)} with those to the kernel, "
        f"the API types and the errors; {len(arrows_up(arrows))} back up, {len(circles(arrows))} circles, "
        f"{len(between_services(arrows))} from service to service"
    )
    problems = list(_problems(arrows))
    print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
