"""The service `unroll` as a process of its own. Sets and their targets, as one row for each PackageVariant.

It writes nothing to the cluster.
"""

import sys

from pvbus.runtime.process.hosting import service_main
from pvbus.runtime.process.settings import UnrollConfig

main = service_main("unroll", UnrollConfig, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
