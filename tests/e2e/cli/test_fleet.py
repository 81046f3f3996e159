"""The main job: the example fleet on one machine, by the command a person runs."""

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.progress import VARIANT
from tests.e2e.cli.command import Done, git, pvbus, running
from tests.kit.cluster import resource_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500), pytest.mark.xdist_group("fleet")]

REGIONS = ("africa", "america", "asia", "europe")
VARIANTS_PER_REGION = 50
DRAFT = "refs/heads/drafts/{package}/packagevariant-1"


class Fleet:
    """A data folder in which `pvbus up --example fleet --once` ended, and what it said."""

    def __init__(self, folder: Path, done: Done) -> None:
        self.folder = folder
        self.data = folder / ".pvbus"
        self.done = done

    def files(self, region: str, package: str) -> dict[str, str]:
        """Read a draft with plain git."""
        repository = self.data / "example" / f"edge-{region}.git"
        at = f"{DRAFT.format(package=package)}:{package}"
        names = git(repository, "ls-tree", "-r", "--name-only", at).splitlines()
        return {name: git(repository, "show", f"{at}/{name}") for name in names}


def write_counts(data: Path) -> tuple[int, int]:
    """Return the API server's resource version and the number of records ever written to the bus."""
    with closing(sqlite3.connect(data / "apiserver" / "objects.db")) as objects:
        version = objects.execute("SELECT rv FROM revision").fetchone()[0]
    with closing(sqlite3.connect(data / "bus.db")) as bus:
        records = bus.execute("SELECT sum(next) FROM lanes").fetchone()[0]
    return version, records


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("a fleet")
    done = pvbus("up", "--example", "fleet", "--once", cwd=folder)
    yield Fleet(folder, done)
    shutil.rmtree(folder)


def test_the_fleet_becomes_ready(fleet: Fleet) -> None:
    """All 200 variants reach Ready, the exit code is 0, and the output says where to look."""
    assert fleet.done.code == 0, fleet.done.out + fleet.done.err
    assert "variants 200/200 ready" in fleet.done.out
    assert f"export KUBECONFIG='{fleet.data}/kubeconfig'" in fleet.done.out
    assert (fleet.data / "kubeconfig").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("region", REGIONS)
def test_every_draft_is_rendered(fleet: Fleet, region: str) -> None:
    """Each draft's tree has the files of the blueprint, named and sized for its own cluster."""
    repository = fleet.data / "example" / f"edge-{region}.git"
    branches = git(repository, "for-each-ref", "--format=%(refname)", "refs/heads/drafts").splitlines()
    packages = [f"{region}-{number:02}-web" for number in range(1, VARIANTS_PER_REGION + 1)]
    assert branches == [DRAFT.format(package=package) for package in packages]
    for number, package in enumerate(packages, 1):
        files = fleet.files(region, package)
        assert set(files) == {
            *("Kptfile", "README.md", "cluster.yaml", "deployment.yaml", "namespace.yaml"),
            *("kustomization.yaml", "network-policy.yaml", "package-context.yaml", "replacements.yaml"),
            "service.yaml",
        }
        deployment = yaml.safe_load(files["deployment.yaml"])
        service, ingress = yaml.safe_load_all(files["service.yaml"])
        cluster = yaml.safe_load(files["cluster.yaml"])["spec"]
        policy = yaml.safe_load(files["network-policy.yaml"])
        context = yaml.safe_load(files["package-context.yaml"])["data"]
        conditions = {
            c["type"]: c["status"] for c in yaml.safe_load(files["Kptfile"])["status"]["conditions"]
        }
        assert conditions == {"config.injection.Cluster.cluster": "True", "Rendered": "True"}
        assert cluster == {
            "nodes": 3 + number % 5,
            "replicas": 2 + number % 3,
            "serviceCidr": f"10.{REGIONS.index(region) * 64 + number}.0.0/16",
        }
        assert deployment["spec"]["replicas"] == cluster["replicas"]
        assert {o["metadata"]["namespace"] for o in (deployment, service, ingress, policy)} == {package}
        assert yaml.safe_load(files["namespace.yaml"])["metadata"]["name"] == package
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        assert container["env"] == [{"name": "REGION", "value": region}]
        host = f"{region}-{number:02}.{region}.example.dev"
        assert ingress["spec"]["rules"][0]["host"] == host
        assert policy["spec"]["ingress"][0]["from"][0]["ipBlock"]["cidr"] == cluster["serviceCidr"]
        assert context["tier"] == ("gold" if number % 10 == 0 else "standard")
        assert "# from the cluster's inventory object" in files["deployment.yaml"]


def test_a_second_start_writes_nothing(fleet: Fleet) -> None:
    """`up --once` on converged data ends with 0 within 30 seconds; nothing was written anywhere."""
    before = write_counts(fleet.data)
    heads = git(fleet.data / "example" / "edge-asia.git", "for-each-ref")
    began = time.monotonic()
    done = pvbus("up", "--example", "fleet", "--once", cwd=fleet.folder)
    assert done.code == 0, done.out + done.err
    assert time.monotonic() - began < 30
    assert write_counts(fleet.data) == before
    assert git(fleet.data / "example" / "edge-asia.git", "for-each-ref") == heads


def test_explain_tells_where_a_variant_comes_from(fleet: Fleet) -> None:
    """Set, target, object, each expression's value, what was injected with its hash; live or not."""
    name = "default/web-edge-asia-asia-07-web"
    done = pvbus("explain", name, "-o", "json", cwd=fleet.folder)
    assert done.code == 0, done.err
    document = msgspec.json.decode(done.out)
    (maker,) = document["madeBy"]
    assert maker["set"] == "default/web"
    assert maker["target"] == "spec.targets[0]"
    assert maker["object"] == "fleet.example.dev/Cluster|default|asia-07"
    values = {each["field"]: each["value"] for each in maker["expressions"]}
    assert values == {
        "template.downstream.repoExpr": "edge-asia",
        "template.downstream.packageExpr": "asia-07-web",
        "template.labelExprs[0].valueExpr": "asia",
        "template.annotationExprs[0].keyExpr": "fleet.example.dev/upstream",
        "template.annotationExprs[0].valueExpr": "blueprints.web.v1 for edge-asia",
        "template.packageContext.dataExprs[0].valueExpr": "standard",
        "template.injectors[0].nameExpr": "asia-07",
        "template.pipeline.mutators[0].configMapExprs[0].valueExpr": "asia",
        "template.pipeline.mutators[0].configMapExprs[1].valueExpr": "asia-07.asia.example.dev",
    }
    (injected,) = document["injected"]
    assert (injected["file"], injected["name"], len(injected["hash"])) == ("cluster.yaml", "asia-07", 16)
    assert document["revisions"] == ["edge-asia.asia-07-web.packagevariant-1"]
    assert document["waitsFor"] == []
    assert "does not answer" in document["liveNote"]
    text = pvbus("explain", name, cwd=fleet.folder)
    assert "made by: set default/web, spec.targets[0]" in text.out
    assert "injected: cluster.yaml (required) from fleet.example.dev/Cluster asia-07" in text.out


def test_explain_of_a_set_and_of_nothing(fleet: Fleet) -> None:
    """A set is summed up; an unknown name is exit code 1, a malformed one 2."""
    done = pvbus("explain", "--set", "default/web", "-o", "json", cwd=fleet.folder)
    assert done.code == 0
    document = msgspec.json.decode(done.out)
    assert document["children"] == {"present": 200}
    assert document["held"] is None
    assert pvbus("explain", "default/nothing", cwd=fleet.folder).code == 1
    assert pvbus("explain", "web", "-o", "json", cwd=fleet.folder).out == done.out, (
        "without --set and namespace"
    )
    wrong = pvbus("explain", "/nothing", cwd=fleet.folder)
    assert (wrong.code, "names no object" in wrong.err) == (2, True)


def test_conditions_and_topics(fleet: Fleet) -> None:
    """Every variant's conditions are on the public topic, and the topics can be listed and read."""
    done = pvbus("conditions", "-o", "json", cwd=fleet.folder)
    events = [msgspec.json.decode(line) for line in done.out.splitlines()]
    ready = [e for e in events if e["kind"] == "PackageVariant" and e["condition"]["type"] == "Ready"]
    assert len(ready) == 200
    assert {event["condition"]["status"] for event in ready} == {"True"}
    assert pvbus("conditions", "--not-ready", "-o", "json", cwd=fleet.folder).out == ""
    listed = msgspec.json.decode(pvbus("topics", "-o", "json", cwd=fleet.folder).out)
    assert {topic["name"]: topic["records"] for topic in listed}["pvbus.targets"] == 200
    name = "default/web-edge-asia-asia-07-web"
    (row,) = msgspec.json.decode(
        pvbus("topics", "pvbus.results", "--key", name, "-o", "json", cwd=fleet.folder).out
    )
    assert row["value"]["injected"][0]["name"] == "asia-07"
    unknown = pvbus("topics", "pvbus.nothing", cwd=fleet.folder)
    assert (unknown.code, "there is no topic" in unknown.err) == (2, True)


def test_backup_while_it_runs_and_restore(fleet: Fleet) -> None:
    """A backup of a running installation becomes a data folder that is converged at once."""
    with running("up", cwd=fleet.folder) as up:
        up.wait_for("variants 200/200 ready")
        done = pvbus("backup", "saved.tar.gz", cwd=fleet.folder)
        assert done.code == 0, done.err
        again = pvbus("backup", "saved.tar.gz", cwd=fleet.folder)
        assert (again.code, "exists" in again.err) == (2, True)
        assert up.end() == 0
    assert (fleet.folder / "saved.tar.gz").stat().st_mode & 0o777 == 0o600
    restored = pvbus("restore", "saved.tar.gz", "--data", "elsewhere", cwd=fleet.folder)
    assert restored.code == 0, restored.err
    before = write_counts(fleet.folder / "elsewhere")
    up_again = pvbus("up", "--once", "--data", "elsewhere", cwd=fleet.folder)
    assert up_again.code == 0, up_again.out + up_again.err
    assert "variants 200/200 ready" in up_again.out
    assert write_counts(fleet.folder / "elsewhere") == before
    full = pvbus("restore", "saved.tar.gz", "--data", "elsewhere", cwd=fleet.folder)
    assert (full.code, "is not empty" in full.err) == (2, True)


def test_a_live_variant_is_explained_and_followed(fleet: Fleet) -> None:
    """While `up` runs: explain has the live object, health says ready, and a second `up` is refused."""
    with running("up", "--example", "fleet", cwd=fleet.folder) as up:
        up.wait_for("variants 200/200 ready")
        for words in ("kubectl patch cluster asia-01", "kubectl label cluster asia-01", "explain"):
            up.wait_for(words)
        done = pvbus("explain", "default/web-edge-asia-asia-07-web", "-o", "json", cwd=fleet.folder)
        live = msgspec.json.decode(done.out)["live"]
        assert live["spec"]["downstream"] == {"repo": "edge-asia", "package": "asia-07-web"}
        second = pvbus("up", cwd=fleet.folder)
        assert second.code == 1
        assert (
            f"the data folder {fleet.data} is in use by another pvbus (process {up.process.pid})"
            in second.err
        )
        assert up.end() == 0


async def test_conditions_are_followed(fleet: Fleet) -> None:
    """`--follow` prints a line for a change that happens after the table, with its event's id."""
    name = "web-edge-asia-asia-08-web"
    with running("up", cwd=fleet.folder) as up:
        up.wait_for("variants 200/200 ready")
        follow = ("conditions", f"default/{name}", "--follow", "-o", "json")
        with running(*follow, cwd=fleet.folder) as following:
            following.wait_for('"type":"Stalled"')
            cluster = await HttpCluster.connect(fleet.data / "kubeconfig")
            try:
                resource = await resource_of(cluster, VARIANT)
                for hold in ("true", None):
                    patch = {"metadata": {"annotations": {"pvbus.dev/hold": hold}}}
                    await cluster.patch(resource, "default", name, patch)
                    line = following.wait_for(
                        '"reason":"OnHold"' if hold else '"previous":"False"', seconds=30
                    )
                    event = msgspec.json.decode(line)
                    assert (event["name"], len(event["id"])) == (name, 16)
            finally:
                await cluster.close()
        up.wait_for("variants 200/200 ready")
        assert up.end() == 0
    # It may have ended before all that followed from the change was written; the other tests want that done.
    assert pvbus("up", "--once", cwd=fleet.folder).code == 0
