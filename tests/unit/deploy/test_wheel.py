"""What pip installs: the wheel has the code and every file that the code reads."""

from pathlib import Path
from zipfile import ZipFile

from hatchling.builders.wheel import WheelBuilder

REPOSITORY = Path(__file__).parents[3]
PACKAGES = ("pvbus", "services")


def test_the_wheel_has_every_file_of_its_packages(tmp_path: Path) -> None:
    """Definitions, examples and the page are data beside the code: without one, a command of an installed
    pvbus fails that works in this folder."""
    (wheel,) = WheelBuilder(str(REPOSITORY)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.partition("/")[0].endswith(".dist-info")}
    files = {
        str(path.relative_to(REPOSITORY))
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {"pvbus/core/api/crossplane.yaml", "pvbus/core/api/carvel.yaml", "pvbus/py.typed"} <= files
    assert names == files
