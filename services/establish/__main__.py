"""The service `establish` as a process of its own. The lock, as packages in the cluster.

It makes the cluster equal to the lock of `resolve`.
"""

import sys

from pvbus.runtime.process.hosting import service_main
from pvbus.runtime.process.settings import PlatformConfig

main = service_main("establish", PlatformConfig, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
