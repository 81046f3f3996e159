"""The service `render` as a process of its own. Rows of targets, as PackageVariants.

It creates, updates and deletes PackageVariants and nothing else.
"""

import sys

from pvbus.runtime.process.hosting import service_main
from pvbus.runtime.process.settings import ServiceConfig

main = service_main("render", ServiceConfig, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
