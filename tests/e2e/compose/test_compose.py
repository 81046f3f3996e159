"""compose.yaml: valid for the compose specification, and every command in it works."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.manifests import Manifest
from pvbus.cli.apply import apply
from pvbus.cli.progress import VARIANT
from pvbus.core.kernel.rights import SERVICE_RIGHTS
from pvbus.core.kernel.topics import ALL_SERVICES, PLATFORM, PROMOTION
from pvbus.examples import fleet
from pvbus.ports.cluster import Object
from tests.e2e.compose.containers import Compose
from tests.kit.cluster import resource_of
from tests.tools.installation import CHECKOUT
from tests.tools.kafka import KafkaUnavailableError, libraries

FILE = CHECKOUT / "compose.yaml"
CLUSTERS = ("asia-01", "asia-02", "africa-01")


def test_the_file_is_valid() -> None:
    """It follows the schema that the compose specification publishes."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_broken_file_that_the_schema_refuses(tmp_path: Path) -> None:
    """The check before is one that can fail."""
    broken = tmp_path / "compose.yaml"
    broken.write_text(FILE.read_text().replace("stop_grace_period", "stop_grace_time"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    assert subprocess.run([*command, str(broken)], capture_output=True, check=False).returncode == 1


def test_what_proposes_and_approves_and_installs_has_to_be_asked_for() -> None:
    """Whoever starts the file without a profile has no service that proposes, approves or installs."""
    services = yaml.safe_load(FILE.read_text())["services"]
    profiles = {name: tuple(each["profiles"]) for name, each in services.items() if each.get("profiles")}
    assert profiles == dict.fromkeys(PROMOTION, ("promotion",)) | dict.fromkeys(PLATFORM, ("platform",))


def test_a_service_mounts_its_own_account_and_nothing_else() -> None:
    """Only the API server has the data with the administrator's kubeconfig, the authority and the tokens."""
    services = yaml.safe_load(FILE.read_text())["services"]
    mounted = {name: tuple(service.get("volumes", ())) for name, service in services.items()}
    assert mounted.pop("kafka") == ("kafka:/var/lib/kafka/data",)
    clients = [name for name in ALL_SERVICES if SERVICE_RIGHTS[name]]
    accounts = {f"account-{name}:/accounts/{name}" for name in clients}
    assert set(mounted.pop("apiserver")) == {"data:/data"} | accounts
    assert mounted.pop("unroll") == ()
    assert mounted == {name: (f"account-{name}:/account:ro",) for name in clients}
    (prepared,) = re.findall(r"for service in ([a-z ]+);", (CHECKOUT / "deploy/Dockerfile").read_text())
    assert sorted(prepared.split()) == sorted(clients)


def test_a_service_reaches_outside_only_if_it_reads_there() -> None:
    """The package store and the sources of packages, and a rollout's Prometheus; the rest has no way out."""
    document = yaml.safe_load(FILE.read_text())
    assert document["networks"] == {"inside": {"internal": True}, "outside": None}
    networks = {name: service["networks"] for name, service in document["services"].items()}
    outside = {name for name, names in networks.items() if "outside" in names}
    assert outside == {"apiserver", "resolve", "establish", "rollout"}
    assert all("inside" in names for names in networks.values())
    published = {name for name, service in document["services"].items() if service.get("ports")}
    assert published == {"apiserver"}
    assert all(port.startswith("127.0.0.1:") for port in document["services"]["apiserver"]["ports"])


def test_every_container_of_ours_is_limited_as_on_a_cluster() -> None:
    """It writes nothing but its volumes and /tmp, has no capability, and gains no right."""
    services = yaml.safe_load(FILE.read_text())["services"]
    for name in ("apiserver", *ALL_SERVICES):
        service = services[name]
        assert service["read_only"] is True, name
        assert service["tmpfs"] == ["/tmp"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "user", "cap_add", "network_mode", "pid", "env_file"} & set(service), name


def test_the_image_holds_what_is_built_from() -> None:
    """The Dockerfile is where the file says, and nothing that it copies is kept from the build."""
    build = yaml.safe_load(FILE.read_text())["services"]["apiserver"]["build"]
    assert build["context"] == "."
    sources = re.findall(r"^COPY (\S+) ", (CHECKOUT / build["dockerfile"]).read_text(), re.MULTILINE)
    assert sources
    let_in = {line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert set(sources) == let_in
    assert all((CHECKOUT / source).exists() for source in sources)


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    try:
        libraries()
    except KafkaUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    with Compose(FILE, tmp_path) as containers:
        yield containers


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_works(compose: Compose) -> None:
    """Broker, API server and services start, are healthy, make variants, and end in their grace time."""
    compose.start_kafka()
    compose.start("apiserver")
    compose.wait_healthy("apiserver")
    started = [name for name in compose.services if name not in ("kafka", "apiserver")]
    assert sorted(started) == sorted(ALL_SERVICES)
    for service in started:
        compose.start(service)
    for service in started:
        compose.wait_healthy(service)
    made = asyncio.run(_variants(compose))
    assert sorted(made) == sorted(CLUSTERS)
    assert _users(compose) == {name: f"pvbus-{name}" for name in ALL_SERVICES if SERVICE_RIGHTS[name]}
    assert {service: compose.stop(service) for service in started} == dict.fromkeys(started, 0)
    assert compose.stop("apiserver") == 0


def _users(compose: Compose) -> dict[str, str]:
    """Return the only user of the kubeconfig that each service mounts."""
    users = {}
    for name in ALL_SERVICES:
        file = compose.volume(f"account-{name}") / "kubeconfig"
        if file.exists():
            (user,) = yaml.safe_load(file.read_text())["users"]
            users[name] = user["name"]
    return users


async def _variants(compose: Compose) -> list[str]:
    """Apply the example with a few clusters; return of which of them a variant is ready."""
    manifests = [m for m in fleet.make(compose.data / "example") if _is_wanted(m)]
    cluster = await HttpCluster.connect(compose.data / "kubeconfig", strict=True)
    try:
        await apply(cluster, manifests)
        resource = await resource_of(cluster, VARIANT)
        async with asyncio.timeout(90):
            while True:
                variants = (await cluster.list(resource)).items
                ready = [_target(each) for each in variants if _is_ready(each)]
                if len(ready) == len(CLUSTERS):
                    return ready
                await asyncio.sleep(0.5)
    finally:
        await cluster.close()


def _is_wanted(manifest: Manifest) -> bool:
    obj = manifest.object
    return obj["kind"] != "Cluster" or obj["metadata"]["name"] in CLUSTERS


def _is_ready(variant: Object) -> bool:
    conditions = variant.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _target(variant: Object) -> str:
    return str(variant["spec"]["downstream"]["package"]).removesuffix("-web")
