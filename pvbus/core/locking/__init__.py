"""The service resolve: decides which version of each package is installed, and keeps the lock.

`revisions` has the rules of a package's revisions, `state` the tables, `problem` what the resolver is asked,
`deciding` the decision for all installs together, `observing` the look at a source, and `controller` joins
them.
"""
