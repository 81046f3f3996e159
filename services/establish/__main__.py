"""The service `establish` as a process of its own. The lock, as packages in the cluster.

    PVBUS_BUS=sqlite:.pvbus/bus.db PVBUS_KUBECONFIG=.pvbus/kubeconfig python -m services.establish

It makes the cluster equal to the lock of `resolve`.
Every setting is a variable; `pvbus.runtime.process.settings.EstablishConfig` has the reasons. Any number of
these processes may run, each takes its share of the partitions. SIGTERM lets it finish what it holds.
"""

import sys
from collections.abc import Sequence

from pvbus.runtime.process.hosting import run_process
from pvbus.runtime.process.settings import EstablishConfig

SERVICE = "establish"


def main(arguments: Sequence[str] = ()) -> int:
    """Return the exit code: 0 ended by a signal, 1 failed, 2 bad configuration."""
    return run_process(SERVICE, EstablishConfig, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
