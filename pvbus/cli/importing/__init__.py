"""Makes PackageVariantSets of the definitions by which other programs deploy to many clusters."""
