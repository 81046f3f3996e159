"""The service `resolve` as a process of its own. Installs of packages, as the lock.

    PVBUS_BUS=sqlite:.pvbus/bus.db PVBUS_KUBECONFIG=.pvbus/kubeconfig python -m services.resolve

It writes nothing to the cluster: without `establish`, no package is installed. It reads pull secrets, and
asks the registries for versions and contents of packages.
Every setting is a variable; `pvbus.runtime.process.settings.ResolveConfig` has the reasons. Any number of
these processes may run, each takes its share of the partitions. SIGTERM lets it finish what it holds.
"""

import sys
from collections.abc import Sequence

from pvbus.runtime.process.hosting import run_process
from pvbus.runtime.process.settings import ResolveConfig

SERVICE = "resolve"


def main(arguments: Sequence[str] = ()) -> int:
    """Return the exit code: 0 ended by a signal, 1 failed, 2 bad configuration."""
    return run_process(SERVICE, ResolveConfig, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
