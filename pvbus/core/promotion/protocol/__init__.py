"""The rollout protocol: which proposed revisions are approved when. Pure.

`selection` decides which revisions a policy is for, `rules` compiles a policy, `machine` takes a rollout one
step, `rehearsal` runs it against an imagined fleet. `proposals` says what may be proposed at all, and
`quarantines` what may not. The states and their transitions are in the kernel.

The rules of a rollout:

- **Attempt.** When the proposed revisions of a policy have not changed for its settle time, an attempt plans
  its waves over them: (target, revision, content digest). The plan does not grow but by canaries:
  percentages are of it.
- **Canaries.** No attempt is planned before each named canary is proposed, or runs the revision, and no later
  wave begins before each is proven: see `canaries`. A person may excuse one for one attempt.
- **Evidence** counts only for the target, revision, digest and attempt that it names.
- **Join.** A target that appears later, or whose revision is proposed later, waits for the next attempt,
  which begins with the canaries.
- **New upstream revision.** It supersedes the attempt, or waits for its end: see `superseding`. A target
  whose planned revision alone is replaced before its approval leaves the attempt.
- **Withdrawn, vetoed or deleted.** A revision that goes back to Draft, loses its readiness, is on hold or is
  deleted before its approval was ordered leaves the attempt, and returns if it may be approved again
  unchanged. After the order it is gone for this attempt, and returns in the next one. Who left does not hold
  up its wave, and counts for no budget.
- **Approved by a person.** A planned revision that somebody else publishes counts as approved.
- **A person's approval of a wave** opens what comes after it, once. To take it back later, pause.
- **Clock.** Only watched time counts, at most `LOOK_SECONDS_MAX` between two steps: a clock that jumps ahead
  or a service that was away ends no hold time, one that jumps back holds nothing up.
- **Pause** orders nothing, approval or rollback, and stops the time. What was ordered goes on.
- **Quarantine.** What an attempt brought is quarantined when it fails or is rolled back, before anything is
  undone: see `isolating`. Nothing is resumed while it lasts.
- **Train.** The members of a train on one site are one unit: see `units`, `trains` and `partials`. It is
  planned whole, leaves whole before its first order, and after it is made whole in time or undone in reverse.
- **Stop.** Nothing more is ordered. Resuming accepts the targets that fail by then; one more stops it again.
- **Abort** and **roll back** take orders back first, and wait until each is carried out or confirmed as not.
- **Roll back** publishes the last good revision of each target again, in the same waves and with the same
  limit of targets in flight. A target that had none keeps what it has.
- **Again.** Content of an attempt that did not prove it is not tried again before it changes, or a person
  restarts it.
"""
