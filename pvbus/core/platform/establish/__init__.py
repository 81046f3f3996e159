"""Makes the cluster equal to the lock: revisions, packaged objects, runtimes, dependencies, statuses.

`controller` has the tables and begins each reconciliation; `crossplane` and `carvel` carry a lock's row out
for their family, and `families` has what differs; `states` is the table of an install, and `findings` looks
at it; `applying` writes objects so that all or none of them change; `owners` has the rules of owner
references, and `objects` the form of objects. Each other module is a part of one of these steps.
"""
