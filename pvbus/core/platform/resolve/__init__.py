"""The service resolve: decides which version of each package is installed, and keeps the lock.

`revisions` has the rules of a package's revisions, `state` the tables, `problem` what the resolver is asked,
`decision` is one decision on the installs that belong together, from `plans`; `deciding` says on which, and
`observing` looks at a source. `controller` joins them.
"""
