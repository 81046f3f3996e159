"""Rules of package variants that are reported per occurrence."""

import msgspec

from pvbus.core.api.variants import PackageVariantSpec
from pvbus.core.variants.inject.mutations.validation import validate_variant


def test_a_reserved_key_is_reported_each_time_it_is_listed() -> None:
    """Porch checks each key to remove, for one reserved key after the other."""
    spec = msgspec.convert(
        {
            "upstream": {"repo": "r", "package": "p", "revision": 1},
            "downstream": {"repo": "r", "package": "p"},
            "packageContext": {"removeKeys": ["name", "a", "package-path", "name"]},
        },
        PackageVariantSpec,
    )
    keys = '["name","a","package-path","name"]'
    problem = f"spec.packageContext.removeKeys: Invalid value: {keys}: must not contain the key"
    assert validate_variant(spec) == [
        f'{problem} "name"',
        f'{problem} "name"',
        f'{problem} "package-path"',
    ]


def test_what_is_followed_of_a_draft_is_one_of_two_words_on_the_variant_and_in_its_spec() -> None:
    ends = {
        "upstream": {"repo": "r", "package": "p", "revision": 1},
        "downstream": {"repo": "r", "package": "p"},
    }
    spec = msgspec.convert({**ends, "annotations": {"pvbus.dev/follow": "all"}}, PackageVariantSpec)
    problem = 'annotations[pvbus.dev/follow] can only be "publications" or "saves", not'
    assert validate_variant(spec, {"pvbus.dev/follow": ""}) == [
        f'spec.{problem} "all"',
        f'metadata.{problem} ""',
    ]
    assert validate_variant(msgspec.convert(ends, PackageVariantSpec), {"pvbus.dev/follow": "saves"}) == []
