"""The service `resolve` as a process of its own. Installs of packages, as the lock.

It writes nothing to the cluster: without `establish`, no package is installed. It reads pull secrets, and
asks the registries for versions and contents of packages.
"""

import sys

from pvbus.runtime.process.hosting import service_main
from pvbus.runtime.process.settings import ResolveConfig

main = service_main("resolve", ResolveConfig, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
