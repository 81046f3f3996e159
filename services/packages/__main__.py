"""The service `packages` as a process of its own. The package store, as an aggregated API.

    PVBUS_KUBECONFIG=~/.kube/config PVBUS_SERVING_WRITE_AUTHORITY=true python -m services.packages

It serves PackageRevisions and their resources behind a kube-apiserver, which knows it by an APIService.
Every setting is a variable; `pvbus.runtime.process.settings.PackagesConfig` has the reasons. Any number of
these processes may run, each with a folder of its own; each serves everything. SIGTERM ends it.
"""

import sys

from pvbus.cli.packagestore import serve_packages
from pvbus.runtime.process.hosting import process_main
from pvbus.runtime.process.settings import PackagesConfig

main = process_main("packages", PackagesConfig, serve_packages, __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
