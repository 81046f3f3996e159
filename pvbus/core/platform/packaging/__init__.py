"""Packages that depend on each other, of both families: Crossplane's and Carvel's.

`reading` and `needs` read what installs say, `references` and `xpkg` name and read packages, `statuses` says
what becomes of them. Of Carvel's alone, `carvelfacts` has what is known of its packages, `carvelobjects`
reads its objects, `restrictions` has the installationType, `structure` the check of an API's fields. What
`resolve` and `establish` keep on the bus and say to each other is in the kernel.
"""
