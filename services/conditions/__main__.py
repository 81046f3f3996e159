"""The service `conditions` as a process of its own. Results, as conditions and events.

It writes status subresources and nothing else.
"""

import sys

from pvbus.runtime.process.hosting import service_main
from pvbus.runtime.process.settings import ConditionsConfig

main = service_main("conditions", ConditionsConfig, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
