"""The service `ingest` as a process of its own. What the API server has, as rows of the bus.

It writes nothing to the cluster.
"""

import sys

from pvbus.runtime.process.hosting import service_main
from pvbus.runtime.process.settings import ServiceConfig

main = service_main("ingest", ServiceConfig, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
