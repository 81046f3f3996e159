"""The service `inject` as a process of its own. PackageVariants, as drafts of packages.

It writes PackageRevisions, their resources, and the finalizer of PackageVariants.
"""

import sys

from pvbus.runtime.process.hosting import service_main
from pvbus.runtime.process.settings import ServiceConfig

main = service_main("inject", ServiceConfig, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
