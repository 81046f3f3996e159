"""The service `rollout` as a process of its own. RolloutPolicies, as orders to approve in waves.

It writes the status of RolloutPolicies: without `promote` and `release`, nothing is approved.
"""

import sys

from pvbus.runtime.process.hosting import service_main
from pvbus.runtime.process.settings import RolloutConfig

main = service_main("rollout", RolloutConfig, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
