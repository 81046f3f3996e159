"""Secrets in text: what is replaced, and what stays because it is none."""

import time

import pytest

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.redaction import is_secret_name, without_secrets

MARK = "mArk0fASecret"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {MARK}",
        f"proxy-authorization:{MARK} {MARK}",
        f"<CIMultiDictProxy('Host': 'x', 'Authorization': 'Bearer {MARK}', 'A': 'b')>",
        f"(b'Authorization', b'Bearer {MARK}\\x00{MARK}')",
        f"CIMultiDict([('Authorization', 'Bearer {MARK}')])",
        f"<istr('authorization')>: 'Bearer {MARK}'",
        f"('Cookie', 'a={MARK}; b={MARK}')",
        f"Set-Cookie: s={MARK}; Path=/",
        f'"Cookie": "a=\\"{MARK}\\"; c={MARK}"',
        f"X-Api-Key: {MARK}",
        f"sent bearer {MARK}, and got 401",
        f"Basic {MARK}==",
        f"https://user:{MARK}@h/x",
        f"https://{MARK}@h/x",
        f"https://u:p/{MARK}@h/x",
        f"ssh://git:{MARK}@h/x",
        f"kafka://u:{MARK}@broker:9092",
        f"POST /hook?token={MARK}&x=1",
        f"https://h/?X-Amz-Signature={MARK}",
        f"client_secret={MARK}",
        f"BasicAuth(login='u', password='{MARK}', encoding='latin1')",
        f"{{'password': '{MARK}', 'x': 2}}",
        f'{{"ca":"x","token":"{MARK}"}}',
        f'{{\\"token\\":\\"{MARK}\\",\\"a\\":1}}',
        f'"client-key-data": "{MARK}"',
        f'in "<unicode string>", line 1:\n  password: {MARK}: x\n  ^',
        f"{{'kind': 'Secret', 'data': {{'anything': '{MARK}'}}}}",
        f'{{"stringData":{{"anything":"{MARK}"}},"kind":"Secret"}}',
        f"-----BEGIN RSA PRIVATE KEY-----\n{MARK}\n",
        f"eyJhbGciOiJub25lIn0.{MARK}.{MARK}",
        f"ghp_{MARK}{MARK}",
    ],
)
def test_a_secret_is_replaced(text: str) -> None:
    """In headers, addresses, parameters, fields of JSON, Python and YAML, keys, and tokens of known forms."""
    assert MARK not in without_secrets(text)
    assert "***" in without_secrets(text)
    assert without_secrets(without_secrets(text)) == without_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "draft created for default/web-eu in 0.2 s",
        "no answer from https://registry.example:5000/v2 within 30 s; check that it runs",
        "oci://host:5000/repository@sha256:0123",
        "https://host:8443/path@v1",
        "git clone ssh://git@host/x",
        "the bearer token of the request",
        "Basic authentication is off",
        "PVBUS_SINK_TOKEN_FILE: cannot read /run/token",
        "PVBUS_TOKEN: unknown setting",
        "kubectl create secret generic x --from-literal=username=... --from-literal=password=...",
        "spec.git.secretRef: is not a name",
        "continue token: it is too old",
        "kubectl annotate pvs/web pvbus.dev/confirm=2f",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Messages say what to do: addresses, names of settings and examples are part of that."""
    assert without_secrets(text) == text


@pytest.mark.parametrize("kind", [PermanentError, TransientError])
def test_an_error_shows_no_secret(kind: type[PermanentError | TransientError]) -> None:
    """Its text goes to conditions, events and answers, too."""
    assert str(kind(f"cannot read https://u:{MARK}@h/x: 401")) == "cannot read https://***@h/x: 401"


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [("token", True), ("bearer_token", True), ("Authorization", True), ("api-key", True), ("tokens", False),
     ("key", False), ("token_file", False), ("name", False)],
)  # fmt: skip
def test_names_of_secret_fields(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret


@pytest.mark.parametrize(
    "piece",
    ["//a:", "token", "authorization:", "'token", "bearer ", "-----BEGIN PRIVATE KEY-----", "\\", "token = ",
     'authorization="', "kind':'Secret' 'data':{", "a=", "password=\\", "token: "],
)  # fmt: skip
def test_time_is_linear_in_the_text(piece: str) -> None:
    """Text is foreign: eight times as much of it takes no more than eight times as long, with a margin."""

    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        best = float("inf")
        for _ in range(3):
            began = time.thread_time()
            without_secrets(text)
            best = min(best, time.thread_time() - began)
        return best

    assert seconds(64_000) < 8 * 4 * max(seconds(8_000), 0.0005)
