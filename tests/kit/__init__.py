"""What tests of several folders share. Look here before you write a helper.

| module | has |
| --- | --- |
| `deciding` | one decision run effect by effect, and the rows of a bus for it (`drive`, `Partition`) |
| `cluster` | the objects of an API server by kind, as people and programs work with them (`KindClient`) |
| `objects` | the embedded API server's store, in memory |
| `faults` | a cluster and a bus that fail as they are told |
| `busbeside` | what happens to the bus beside the code |
| `bus_contract`, `bus_contract_churn`, `bus_contract_groups`, `bus_contract_worker` | what any bus must do |
| `clocks` | what any clock must do |
| `processes` | processes in virtual time, which tests freeze and kill |
| `oracle` | the variants that sets must have, computed in another way than by unroll and render |

A world is the state around the code under test: named for what it is a world of (`FolderWorld`), and defined
once. The tables in CONTRIBUTING.md say which one to begin with at each level.
"""
