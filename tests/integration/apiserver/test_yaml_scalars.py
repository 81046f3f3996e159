"""Go's answers to YAML scalars come out of `application/yaml`, server-side apply, `up` and `plan` alike."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.manifests import read_manifests
from pvbus.cli.apply import apply
from pvbus.cli.planinput import admitted, read_input
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.core.errors import UsageError
from tests.integration.apiserver.client import WIDGETS, Api, crd, serving
from tests.tools.yamlanswers import GoAnswer, go_answers

ANSWERS = go_answers("c10", "scalars")
READ = [answer for answer in ANSWERS if not answer.is_refused]
REFUSED = [answer for answer in ANSWERS if answer.is_refused]
EXPECTED = {f"k{number}": answer.value["v"] for number, answer in enumerate(READ)}


def manifest(name: str, lines: Iterator[str]) -> str:
    head = (
        f"apiVersion: example.com/v1\nkind: Widget\nmetadata: {{name: {name}, namespace: default}}\nspec:\n"
    )
    return head + "".join(f"  {line}" for line in lines)


def of_all(name: str) -> str:
    return manifest(name, (f"k{number}:{answer.text[2:]}" for number, answer in enumerate(READ)))


def same(found: Any) -> bool:
    """Compare to the type: 1 is not true."""
    return json.dumps(found, sort_keys=True) == json.dumps(EXPECTED, sort_keys=True)


def open_crd() -> dict[str, Any]:
    definition = crd()
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec
    return definition


async def test_all_ways_into_the_server_give_gos_answers(tmp_path: Path) -> None:
    server = ApiServer(tmp_path / "data", crds=[open_crd()], tls=False)
    async with serving(server) as api:
        assert same((await post_yaml(api, "posted"))["spec"])
        reply = await api.call(
            "PATCH",
            f"{WIDGETS}/applied?fieldManager=test",
            of_all("applied"),
            media="application/apply-patch+yaml",
        )
        assert reply.code == 201, reply.body
        file = tmp_path / "all.yaml"
        file.write_text(of_all("up"))
        cluster = await HttpCluster.connect(server.kubeconfig_path)
        try:
            await apply(cluster, read_manifests([file]))
        finally:
            await cluster.close()
        for name in ("posted", "applied", "up"):
            assert same((await api.get(f"{WIDGETS}/{name}"))["spec"])
        for answer in REFUSED:
            reply = await api.call("POST", WIDGETS, refused(answer), media="application/yaml")
            assert reply.code == 400, answer.text
            assert "not valid YAML: line" in reply.body["message"]


async def post_yaml(api: Api, name: str) -> Any:
    reply = await api.call("POST", WIDGETS, of_all(name), media="application/yaml")
    assert reply.code == 201, reply.body
    return reply.body


def refused(answer: GoAnswer) -> str:
    return manifest("refused", iter([answer.text]))


def test_plan_gives_gos_answers(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(of_all("plan").replace("\nspec:", "\nspec:\n  k: 1"))
    objects, errors = admitted(read_input([file]).manifests)
    assert errors == []
    assert same({key: value for key, value in objects[0]["spec"].items() if key != "k"})


@pytest.mark.parametrize("read", [read_manifests, read_input])
def test_what_go_refuses_no_command_reads(tmp_path: Path, read: Any) -> None:
    file = tmp_path / "refused.yaml"
    for answer in REFUSED:
        file.write_text(refused(answer))
        with pytest.raises(UsageError, match=rf"{file}: not valid YAML: line \d"):
            read([file])
