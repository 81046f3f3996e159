"""Packages that depend on each other, of both families: Crossplane's and Carvel's.

`model` has what installs say, and `rows` what `resolve` and `establish` keep on the bus and say to each
other.
"""
