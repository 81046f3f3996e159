"""kube-apiserver and the embedded API server, with the same definitions."""

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.e2e.apicalls.calls import Server
from tests.e2e.apicalls.gadgets import GADGETS
from tests.tools.realcluster import RealCluster, running
from tests.tools.served import serve

CRDS = sorted((Path(__file__).parents[3] / "schemas" / "crds").glob("*.yaml"))


@contextlib.contextmanager
def both() -> Iterator[tuple[Server, Server]]:
    """Run both servers. Raises ClusterUnavailableError."""
    with running(CRDS) as cluster:
        cluster.define(GADGETS)
        with beside(cluster) as servers:
            yield servers


@contextlib.contextmanager
def beside(cluster: RealCluster) -> Iterator[tuple[Server, Server]]:
    """Run the embedded server beside a cluster that has the definitions."""
    crds = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in CRDS]
    with serve(None, [*crds, GADGETS]) as served:
        real = Server(cluster.url, {}, cluster.client_context())
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        ours = Server(served.server.url, {"Authorization": f"Bearer {served.server.token}"}, context)
        try:
            yield real, ours
        finally:
            real.close()
            ours.close()
