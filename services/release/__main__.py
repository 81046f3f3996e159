"""The service `release` as a process of its own. The orders of promote, as lifecycles of PackageRevisions.

It writes PackageRevisions.
"""

import sys

from pvbus.runtime.process.hosting import service_main
from pvbus.runtime.process.settings import ServiceConfig

main = service_main("release", ServiceConfig, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
