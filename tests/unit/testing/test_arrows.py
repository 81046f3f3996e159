"""The counts of imports between the rooms of the core."""

import pytest

from tests.tools.arrows import Arrow, Arrows, arrows_of, arrows_up, between_services, circles, counted

ROOMS = {
    f"pvbus.core.{module}": module.rpartition(".")[0]
    for module in (
        *("errors", "kernel.keys", "api.variants", "yaml.editor", "variants.template"),
        *("variants.render.controller", "variants.unroll.state", "promotion.proposals", "platform.needs"),
    )
}


def arrows_with(module: str, imports: str) -> Arrows:
    return arrows_of({f"pvbus.core.{module}": imports}, ROOMS)


@pytest.mark.parametrize(
    "imports",
    [
        "import pvbus.core.variants.template",
        "from pvbus.core.variants import template",
        "from pvbus.core.variants.template import Template",
        "if TYPE_CHECKING:\n    from pvbus.core.variants.template import Template",
        "def later():\n    from pvbus.core.variants.template import Template",
    ],
)
def test_every_form_of_an_import_is_an_arrow(imports: str) -> None:
    assert list(arrows_with("variants.render.controller", imports)) == [Arrow("variants.render", "variants")]


def test_an_import_within_a_room_or_of_others_is_no_arrow() -> None:
    imports = "import msgspec\nfrom pvbus.core.variants.render.controller import Render"
    assert not arrows_with("variants.render.controller", imports)


def test_arrows_to_what_every_room_stands_on_are_not_counted() -> None:
    imports = "\n".join(
        f"import pvbus.core.{name}" for name in ("errors", "kernel.keys", "api.variants", "yaml.editor")
    )
    arrows = arrows_with("variants.render.controller", imports)
    assert len(arrows) == 4
    assert counted(arrows) == [Arrow("variants.render", "yaml")]


@pytest.mark.parametrize(
    ("arrow", "is_up"),
    [
        (Arrow("variants.render", "kernel"), False),
        (Arrow("variants.render", "variants"), False),
        (Arrow("kernel", "variants"), True),
        (Arrow("variants.render", "promotion"), True),
        (Arrow("platform", "promotion.promote"), True),
        (Arrow("", "yaml"), True),
        (Arrow("yaml", ""), False),
    ],
)
def test_an_arrow_is_back_up_to_a_layer_above_and_to_the_wing_beside(arrow: Arrow, is_up: bool) -> None:
    assert bool(arrows_up([arrow])) is is_up


def test_rooms_of_one_wing_that_lead_to_each_other_are_a_circle() -> None:
    arrows = [Arrow("variants", "variants.merge"), Arrow("variants.merge", "yaml")]
    assert circles(arrows) == []
    assert circles([*arrows, Arrow("variants.merge", "variants")]) == [("variants", "variants.merge")]


def test_a_folder_of_a_service_belongs_to_it() -> None:
    inside = Arrow("variants.inject", "variants.inject.mutations")
    outside = Arrow("variants.unroll", "variants.inject.mutations")
    assert between_services([inside, outside, Arrow("web", "promotion.rollout")]) == [outside]
