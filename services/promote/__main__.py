"""The service `promote` as a process of its own. Drafts, as orders to propose them, or to take them back.

It writes nothing to the cluster: without `release`, nothing is proposed.
"""

import sys

from pvbus.runtime.process.hosting import service_main
from pvbus.runtime.process.settings import PromoteConfig

main = service_main("promote", PromoteConfig, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
