"""`pvbus sign FILE`: signs a plan with a key of SSH or minisign; a set that requires it follows the plan.

The signature is that of `ssh-keygen -Y sign` or `minisign -S` over the plan's statement, which has the digest
of the whole plan, and the uid, generation and spec of each set. It stands in a file beside the plan.
"""

import subprocess
import tempfile
from pathlib import Path

import click

from pvbus.adapters.files import open_plain, write_private
from pvbus.cli.planfile import PlanFile, read_plan, stated
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel import minisign
from pvbus.core.kernel.keys import SIGNED_PLAN
from pvbus.core.kernel.minisign import Minisignature
from pvbus.core.kernel.sshsig import SIGNATURE_CHARACTERS_MAX, SignatureError
from pvbus.core.variants.unroll.signedplans import NAMESPACE, STATEMENT_BYTES_MAX, is_by, parsed_signature


@click.command(
    short_help="Sign a plan with a key of SSH or minisign.",
    epilog="""\b
Examples:
  pvbus sign plan.json --key ~/.ssh/id_ed25519      writes plan.json.sig
  pvbus sign plan.json --key ~/.minisign/minisign.key
  jq -jr .statement plan.json | ssh-keygen -Y sign -n pvbus-plan -f KEY > plan.json.sig     the same by hand

Exit codes: 0 signed, 1 not signed, 2 bad usage, or no whole plan.
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path),
    help="The secret key: of ssh-keygen with type Ed25519, or of minisign.",
)
def sign(file: Path, key: Path) -> None:
    """Sign the plan in FILE; `pvbus apply FILE` gives the signature to the sets that it changes.

    A set with the annotation pvbus.dev/require-plan, or one that the setting PVBUS_PLAN_REQUIRED names, is on
    hold until it has a plan that is signed by one of PVBUS_PLAN_SIGNERS.
    """
    plan = read_plan(file)
    if not plan.statement:
        raise UsageError(
            f"{file}: this plan changes no set that exists, so there is nothing to sign. A new set gets its "
            "uid when it is applied: apply it, and sign a second plan of it"
        )
    click.echo(f"{file}: {plan.summary}")
    program = _minisign if _is_of_minisign(key) else _ssh_keygen
    text = program(key, plan.statement.encode())
    _check(plan, text, "this key")
    path = signature_path(file)
    write_private(path, text.encode())
    click.echo(f"signed: {path}; pvbus apply {file} takes it along")


def _is_of_minisign(key: Path) -> bool:
    """Return whether a secret key is of minisign. Raises UsageError if it cannot be read."""
    try:
        with key.open("rb") as stream:
            return stream.read(len(minisign.BEGIN)) == minisign.BEGIN.encode()
    except OSError as exc:
        raise UsageError(f"{key}: this key cannot be read: {exc.strerror}") from exc


def _ssh_keygen(key: Path, statement: bytes) -> str:
    """Return the signature of ssh-keygen. Raises PermanentError."""
    command = ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE.decode(), "-f", str(key)]
    return _run(command, key, "OpenSSH", statement).decode()


def _minisign(key: Path, statement: bytes) -> str:
    """Return the signature of minisign, which signs files and asks for the password on the terminal. Raises
    PermanentError."""
    with tempfile.TemporaryDirectory(prefix="pvbus-sign-") as folder:
        message, signature = Path(folder) / "statement", Path(folder) / "statement.minisig"
        message.write_bytes(statement)
        paths = ["-s", str(key), "-m", str(message), "-x", str(signature)]
        _run(["minisign", "-S", "-t", NAMESPACE.decode(), *paths], key, "minisign")
        return signature.read_text(encoding="utf-8")


def _run(command: list[str], key: Path, package: str, statement: bytes | None = None) -> bytes:
    """Run a program that signs; return what it prints. Raises PermanentError."""
    try:
        done = subprocess.run(command, input=statement, stdout=subprocess.PIPE, check=False)
    except FileNotFoundError as exc:
        raise PermanentError(f"there is no {command[0]}: install {package}, or sign it elsewhere") from exc
    if done.returncode:
        raise PermanentError(f"{command[0]} did not sign it with {key}")
    return done.stdout


def signature_path(file: Path) -> Path:
    return file.with_name(f"{file.name}.sig")


def signature_of(file: Path, plan: PlanFile) -> dict[str, str]:
    """Return the annotation with the signature beside a plan, {} without one. Raises UsageError."""
    path = signature_path(file)
    if not path.exists():
        return {}
    with open_plain(path) as stream:
        text = stream.read(SIGNATURE_CHARACTERS_MAX + 1).decode(errors="replace")
    _check(plan, text, str(path))
    return {SIGNED_PLAN: f"{plan.statement}\n{text.strip()}"}


def _check(plan: PlanFile, armored: str, what: str) -> None:
    """Raise UsageError unless a signature is of this plan, and its statement is of this file."""
    if stated(plan).statement != plan.statement or len(plan.statement) > STATEMENT_BYTES_MAX:
        raise UsageError(f"{what}: the statement in the plan is not of this plan: make it again")
    try:
        signature = parsed_signature(armored)
    except SignatureError as exc:
        raise UsageError(f"{what}: cannot be used ({exc})") from exc
    if isinstance(signature, Minisignature):  # it does not have its key, which the service unroll knows
        if signature.comment.encode() != NAMESPACE:
            raise UsageError(f"{what}: its trusted comment is not {NAMESPACE.decode()}: use pvbus sign")
    elif not is_by(signature, signature.key, plan.statement.encode()):
        raise UsageError(f"{what}: the signature is not of this plan: sign it again with pvbus sign")
