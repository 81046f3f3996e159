"""`make api-calls`: random calls of the API, sent to kube-apiserver and to the embedded API server.

    python -m tests.e2e.apicalls [--calls 20000] [--seed 1] [--round 1/17]

Prints each difference that is not listed in `docs.apidifferences`, with the shortest calls that show it,
and then a summary. It ends with 1 if there was one.
"""

import argparse
import sys
import time

from docs.apidifferences import KNOWN
from tests.e2e.apicalls.campaign import Campaign, Failure, run
from tests.e2e.apicalls.servers import both

CALLS = 20_000
"""Calls that meet each entry of the table."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.apicalls", description="Compare two API servers."
    )
    parser.add_argument("--calls", type=int, default=CALLS, help="how many calls (default: 20000)")
    parser.add_argument("--seed", type=int, default=1, help="of the calls (default: 1)")
    parser.add_argument("--round", default="", help="play one round only, as printed with a difference")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many differences (default: 1)")
    arguments = parser.parse_args()
    with both() as (real, ours):
        campaign = Campaign(real, ours)
        begun = time.monotonic()
        if arguments.round:
            failure = campaign.round(arguments.round)
            failures: tuple[Failure, ...] = () if failure is None else (failure,)
            for each in failures:
                _print(each.shown())
        else:
            failures = run(campaign, arguments.seed, arguments.calls, _print, arguments.failures).unexplained
        seconds = time.monotonic() - begun
    print(f"{campaign.sent.total()} calls in {seconds:.0f} s ({dict(campaign.sent)})")
    for known in KNOWN:
        print(f"{campaign.known[known.name]:6} {known.name}: {known.ours}")
    print(f"{len(failures)} unexplained differences")
    unmet = [known.name for known in KNOWN if not campaign.known[known.name]]
    is_whole = campaign.sent.total() >= CALLS and not failures
    if is_whole and unmet:
        print(f"listed, and not met by {CALLS} calls: {', '.join(unmet)}; remove them from the table")
    return 1 if failures or (is_whole and unmet) else 0


def _print(text: str) -> None:
    print(text, "\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
