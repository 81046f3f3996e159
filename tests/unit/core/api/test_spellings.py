"""The spellings of the design documents: each is told the API's own."""

import pytest

from pvbus.core.api.spellings import hint_of, meaning_of, unknown_field


@pytest.mark.parametrize(
    ("kind", "path", "right"),
    [
        ("PackageVariant", "spec.injectionSelectors", "`injectors`"),
        ("PackageVariantSet", "spec.targets[0].template.injectionSelectors", "`injectors`"),
        ("PackageVariant", "spec.upstream.tag", "`workspaceName`"),
        ("PackageVariantSet", "spec.upstream.tag", "`workspaceName`"),
        ("PackageVariantSet", "spec.targets[2].objectSelector.labelSelector", "`matchLabels`"),
        ("PackageVariantSet", "spec.targets[0].repositorySelector.labelSelector", "`matchLabels`"),
        ("PackageVariantSet", "spec.targets[0].packageExpr", "`template.downstream`"),
        ("PackageVariant", "spec.pipeline.mutators[0].tags", ""),
        ("Package", "spec.upstream.tag", ""),
    ],
)
def test_an_unknown_field_is_told_the_right_one(kind: str, path: str, right: str) -> None:
    assert right in hint_of(kind, path)
    assert bool(hint_of(kind, path)) == bool(right)
    assert unknown_field(kind, path).startswith(f'unknown field "{path}"')


@pytest.mark.parametrize(
    ("path", "text", "right"),
    [
        (
            "spec.targets[0].template.downstream.packageExpr",
            "upstream.name + '-' + target.name",
            "packageDefault",
        ),
        ("spec.targets[0].template.downstream.packageExpr", "packageDefault + '-' + target.name", ""),
        ("spec.targets[0].template.labelExprs[0].valueExpr", "upstream.name", ""),
    ],
)
def test_the_name_of_the_upstream_is_that_of_its_revision(path: str, text: str, right: str) -> None:
    assert right in meaning_of(path, text)
    assert bool(meaning_of(path, text)) == bool(right)
