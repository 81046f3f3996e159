"""Every command, as its parser describes it: help, wrong words, an absent object, no server, no right.

The rows are read from the parser: a new command or option is in the table at once. Only what no parser says
stands here: words for a required argument, and which commands are servers themselves.
"""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import pytest

from pvbus.cli import fleet
from pvbus.cli.apiserver import control_plane
from pvbus.cli.datafolder import DataPaths
from pvbus.cli.main import pvbus, run
from pvbus.core.kernel.topics import topic_specs
from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ApiServerConfig, ServiceConfig


class Row(NamedTuple):
    """A command that does something, and its words: `rollout status` is one, `rollout` is none."""

    words: tuple[str, ...]
    command: click.Command

    def takes(self, parameter: str) -> bool:
        return any(each.name == parameter for each in self.command.params)


def rows_of(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[Row]:
    if not isinstance(command, click.Group):
        yield Row(words, command)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from rows_of(inner, (*words, name))


SERVERS = {"up", "demo", "run", "apiserver"}
"""They are the server, or wait for it as services do."""
ROWS = list(rows_of(pvbus))
CLIENTS = [row for row in ROWS if row.words[0] not in SERVERS]
ABSENT = "default/absent"
SAMPLES = {
    "words": ABSENT,
    "name": "absent",
    "group": "absent",
    "resolution": "absent",
    "source": "127.0.0.1:1/absent:v1",
    "variants": "10",
    "changes_per_second": "1",
    "question": "?",
    "reason": "because",
}
"""A word for each parameter that is required and takes any text."""
MORE = {
    ("condition", "set"): ["A=True"],
    ("task", "open"): ["A"],
    ("task", "answer"): ["A"],
    ("confirm",): ["--yes"],
    ("rollout", "excuse"): ["canary"],
    ("rollout", "stop"): ["--all", "--timeout", "1"],
}
"""What a command wants and its parser does not say."""
DOCUMENTS = {"apply": "plan.json", "sign": "plan.json"}
"""The file that a command reads, where any file is not enough."""
PYTHON = re.compile(
    r"Traceback|<class |<[\w.]+ object|\bb'|Error\(|\\u00|\bNone\b|KeyError|Errno|[a-z]_[a-z]+\("
)


def sample_of(row: Row, parameter: click.Parameter) -> str:
    """Return a word that a parameter takes."""
    match parameter.type:
        case click.Choice(choices=choices):
            first = next(iter(choices))
            return str(getattr(first, "value", first))
        case click.Path() | click.File():
            return DOCUMENTS.get(row.words[0], "file.yaml")
    assert parameter.name in SAMPLES, f"{row.words}: say here what {parameter.name} may be"
    return SAMPLES[parameter.name]


def words_of(row: Row, *more: str) -> list[str]:
    """Return a whole command line: what is required, and the name of an object that is not there."""
    names, options = [], []
    for parameter in row.command.params:
        if not (parameter.required or parameter.name == "words"):
            continue
        word = sample_of(row, parameter)
        if isinstance(parameter, click.Option):
            options += [parameter.opts[0], word]
        else:
            names.append(word)
    return [*row.words, *names, *MORE.get(row.words, ()), *options, *more]


class Answered(NamedTuple):
    code: int
    text: str


def answer(capsys: pytest.CaptureFixture[str], words: list[str]) -> Answered:
    """Run a command; its texts are for people who do not know in which language it is written."""
    try:
        code = run(words)
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert not PYTHON.search(text), (words, text)
    return Answered(code, text)


def ids(value: Any) -> str:
    return " ".join(value.words) if isinstance(value, Row) else str(value)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without data, with a file of each kind; no command asks twice."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fleet, "TRY_SECONDS_MAX", 0.0)
    (tmp_path / "file.yaml").write_text("{}\n")
    (tmp_path / "plan.json").write_text("{}\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


# ------------------------------------------------------------ the words


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_help(capsys: pytest.CaptureFixture[str], row: Row) -> None:
    """It has the usage, a sentence, and a sentence for each option that is not hidden."""
    code, text = answer(capsys, [*row.words, "--help"])
    assert code == 0
    assert text.startswith(f"Usage: pvbus {' '.join(row.words)} ")
    assert row.command.help
    for parameter in row.command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.opts[-1] in text, parameter.opts
            is_plain = parameter.help or isinstance(parameter.type, click.Choice)
            assert is_plain, f"{parameter.opts} has no help"


def wrong_words(row: Row) -> Iterator[tuple[list[str], str]]:
    """Yield wrong command lines, and what the answer must name."""
    yield words_of(row, "--no-such-option"), "--no-such-option"
    if all(
        parameter.nargs == 1 and (parameter.required or isinstance(parameter, click.Option))
        for parameter in row.command.params
    ):
        yield words_of(row, "one-too-many"), "one-too-many"
    for parameter in row.command.params:
        wrong = wrong_word(parameter)
        if wrong and isinstance(parameter, click.Option) and not parameter.hidden:
            yield words_of(row, parameter.opts[0], wrong), parameter.opts[0]
        elif wrong and parameter.required:
            good = words_of(row)
            yield [wrong if word == sample_of(row, parameter) else word for word in good], wrong


def wrong_word(parameter: click.Parameter) -> str:
    """Return a word that the type of a parameter refuses, "" where it takes any."""
    match parameter.type:
        case click.Choice():
            return "no-such-choice"
        case click.types.IntParamType() | click.types.FloatParamType():
            return "many"
        case click.Path(exists=True):
            return "no-such-file"
    return ""


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_wrong_words(capsys: pytest.CaptureFixture[str], row: Row) -> None:
    """Exit code 2, and the word that is wrong."""
    for words, named in wrong_words(row):
        code, text = answer(capsys, words)
        assert (code, named in text) == (2, True), (words, text)


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_what_is_required_is_asked_for(capsys: pytest.CaptureFixture[str], row: Row) -> None:
    """Without its required words a command names the first that is missing."""
    required = [parameter for parameter in row.command.params if parameter.required]
    if not required:
        return
    code, text = answer(capsys, [*row.words])
    assert code == 2
    assert text.count("Missing") == 1


@pytest.mark.parametrize("row", [row for row in CLIENTS if row.takes("words")], ids=ids)
def test_names_are_read_alike(capsys: pytest.CaptureFixture[str], row: Row) -> None:
    """What names no object is exit code 2, with what to type, before a bus or a server is looked for."""
    for name in ("a/b/c", "/x", "x/"):
        words = [name if word == ABSENT else word for word in words_of(row)]
        code, text = answer(capsys, words)
        assert (code, "names no object: give NAMESPACE/NAME, " in text) == (2, True), (words, text)
    code, text = answer(capsys, words_of(row, "-n", "other"))
    assert (code, "name two namespaces" in text) == (2, True), text


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_options_are_named_as_for_kubectl(row: Row) -> None:
    """One word for one thing: what names or lists objects takes -n, what watches -w, what prints -o yaml."""
    options = {name: each for each in row.command.params for name in each.opts}
    assert not row.takes("words") or "-n" in options
    for short, long in (
        ("-n", "--namespace"),
        ("-A", "--all-namespaces"),
        ("-l", "--selector"),
        ("-w", "--watch"),
    ):
        assert options.get(short) is options.get(long), short
    assert "--follow" not in options or "--watch" in options
    output = options.get("-o")
    if output is not None and isinstance(output.type, click.Choice):
        assert list(output.type.choices) == ["text", "json", "yaml"]


# ------------------------------------------------------------ no server


@pytest.mark.parametrize("row", [row for row in CLIENTS if row.takes("data")], ids=ids)
def test_no_data_folder(capsys: pytest.CaptureFixture[str], row: Row) -> None:
    """Nothing was started there: exit code 2, the path, and what names or starts it."""
    data = "elsewhere" if row.words == ("restore",) else "empty"
    code, text = answer(capsys, words_of(row, "--data", data))
    if row.words == ("restore",):  # it makes the folder
        assert code == 1
        assert "file.yaml" in text
        return
    if row.words == ("apply",):  # it reads the plan first
        assert (code, "is no plan" in text) == (2, True)
        return
    assert (code, "/empty" in text) == (2, True), text
    assert re.search(r"--data|--kubeconfig|pvbus up", text), text


def write_kubeconfig(path: Path, server: str) -> str:
    clusters = [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}]
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {"token": "t"}}]
    config = {"current-context": "c", "clusters": clusters, "contexts": contexts, "users": users}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
    return str(path)


ASKING = [
    row
    for row in CLIENTS
    if row.takes("kubeconfig") and row.words[0] not in ("user", "apply") and not row.takes("bus")
]
"""Those that first ask an API server. `apply` reads the plan first, `user` writes a file."""
ON_A_BUS = [row for row in CLIENTS if row.takes("kubeconfig") and row.takes("bus")]
"""Those that read the bus, too."""


@pytest.mark.parametrize("row", [*ASKING, *ON_A_BUS], ids=ids)
def test_a_server_that_does_not_run(
    capsys: pytest.CaptureFixture[str], folder: Path, bus_alone: str, row: Row
) -> None:
    """Exit code 1, its address, and what to see to, once."""
    away = write_kubeconfig(folder / "away", "https://127.0.0.1:1")
    is_both = row.takes("bus") and row.takes("data") and row.words not in OF_ONE_SYSTEM
    data = ["--data", bus_alone] if is_both else []
    code, text = answer(capsys, words_of(row, "--kubeconfig", away, *data))
    assert code == 1, text
    if row.words in ON_THE_BUS_ALONE:
        return
    assert "no connection to https://127.0.0.1:1 (Connection refused)" in text
    assert text.count("check that it runs") == 1


OF_ONE_SYSTEM = {("rollout", "plan")}
"""A data folder and a kubeconfig are two systems to it, as to `plan`."""
ON_THE_BUS_ALONE = {("conflicts", "take"), ("confirm",)}
"""What is not on the bus is not asked for."""


# ------------------------------------------------------------ no right


class Forbidding(BaseHTTPRequestHandler):
    """An API server that allows nothing."""

    def refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden"}
        body = json.dumps({**status, "code": 403, "message": "ann may not do that"}).encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = refuse  # noqa: N815  # the names of the base

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is inherited
        return


@pytest.fixture(scope="module")
def forbidding() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("row", ASKING, ids=ids)
def test_not_allowed(capsys: pytest.CaptureFixture[str], folder: Path, forbidding: str, row: Row) -> None:
    """Exit code 1, what the server said, and where to see one's rights."""
    code, text = answer(capsys, words_of(row, "--kubeconfig", write_kubeconfig(folder / "ann", forbidding)))
    assert (code, "ann may not do that" in text) == (1, True), text
    assert "kubectl auth can-i" in text, text


# ------------------------------------------------------------ no such object


@pytest.fixture(scope="module")
def bus_alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data folder with a bus on which nothing is."""
    data = tmp_path_factory.mktemp("bus")
    asyncio.run(make_bus(data))
    return str(data)


async def make_bus(data: Path) -> None:
    config = msgspec.structs.replace(load_config(ServiceConfig), bus=f"sqlite:{DataPaths(data).bus}")
    bus = await open_bus(config, create=True)
    await bus.create_topics(topic_specs(1))
    await bus.close()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The data folder of a system in which nothing was made, and whose API server and bus answer."""
    data = tmp_path_factory.mktemp("system")
    loop, ready = asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        async with control_plane(data, 0, load_config(ApiServerConfig)):
            await make_bus(data)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(60)
    yield str(data)
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    loop.close()


NAMING = [row for row in CLIENTS if row.takes("words") or row.words == ("user", "token")]


@pytest.mark.parametrize("row", NAMING, ids=ids)
def test_no_such_object(capsys: pytest.CaptureFixture[str], system: str, row: Row) -> None:
    """The kind, the name, and that the name is to be checked; not exit code 0."""
    code, text = answer(capsys, words_of(row, "--data", system))
    assert code in (1, 2), text
    assert "absent" in text
    assert re.search(r"\b[nN]o (such )?([A-Z][A-Za-z]+|user)\b", text), text
    assert "check namespace and name" in text or "there are:" in text or "there is none" in text, text


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in CLIENTS
        if row.takes("data") and row not in NAMING and row.words[0] not in ("user", "restore", "backup")
    ],
    ids=ids,
)
def test_nothing_to_show(capsys: pytest.CaptureFixture[str], system: str, row: Row) -> None:
    """A system without objects is no error of a command that lists; one that wants something says what."""
    code, text = answer(capsys, words_of(row, "--data", system))
    assert code == 0 or "error: " in text, text
    assert text.strip()
