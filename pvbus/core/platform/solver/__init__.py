"""The resolver: which version of which package to install where, in which order, or why that is impossible.

Everything here is pure. `languages` reads versions and ranges as the Go libraries do, `model` has the
input and the output, `closure` finds what belongs together, `solving` and `search` decide, `explaining`
says why something is impossible, `transaction` orders what is to be done, and `states` reports on each
dependency.
"""
