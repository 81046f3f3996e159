"""The service resolve: decides which version of each package is installed, and keeps the lock.

`revisions` has the rules of a package's revisions, `state` the tables, `problem` what the solver is asked,
and `carvelproblem` the same for a namespace of Carvel's. `decision` is one decision on the installs that
belong together, from `plans`, for the families `crossplane` and `carvel`; `deciding` says on which. `removal`
says what a deletion would mean, and `observing` looks at a source. `controller` joins them.
"""
