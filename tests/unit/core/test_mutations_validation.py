"""Rules of package variants that are reported per occurrence."""

import msgspec

from pvbus.core.api.variants import PackageVariantSpec
from pvbus.core.inject.mutations.validation import validate_variant


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
