"""The certificates of what runs a package: of its server and its client, signed by one authority.

The authority is a Secret that Crossplane has, too, so a take-over keeps it. A certificate stays while its
Secret is whole, of this authority and for the same names; else a new one is made. The authority's certificate
goes into what the API server calls: webhooks and conversions that the package brings.
Source: Crossplane, internal/initializer/tls.go and internal/controller/pkg/revision/establisher.go.
"""

import base64
import binascii
from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Certificate, Certify, Effect
from pvbus.core.platform.establish import applying
from pvbus.core.platform.establish.objects import CRD, Object, kind_of
from pvbus.core.platform.establish.runtime import (
    PROVIDER,
    SECRET,
    SERVED_PORT,
    Runtime,
    RuntimeIdentity,
    client_secret,
    server_secret,
)

AUTHORITY = "crossplane-root-ca"
CERTIFIED = "pvbus.dev/certified-names"
"""On a Secret: the names that its certificate is for."""
_CRT, _KEY, _CA = "tls.crt", "tls.key", "ca.crt"
_HOOKS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")


class Certified(NamedTuple):
    """A runtime with its certificates.

    ca: the authority's certificate in base64, "" if nothing has a certificate
    authority: the Secret of a new authority, which is to be created first; None if it is there
    """

    runtime: Runtime
    ca: str = ""
    authority: Object | None = None


def certify_runtime(ran: Runtime, kind: str, identity: RuntimeIdentity) -> Generator[Effect, Any, Certified]:
    """Return a runtime with its certificates. kind: of the package. Writes nothing.

    Raises PermanentError if the authority cannot be read.
    """
    if not ran.service:
        return Certified(ran)
    authority, new = yield from _authority(identity.namespace)
    hosts = tuple(f"{ran.service}.{identity.namespace}{rest}" for rest in ("", ".svc", ".svc.cluster.local"))
    wanted = [(server_secret(identity.package), (ran.service, *hosts), False)]
    if kind == PROVIDER:
        wanted.append((client_secret(identity.package), (identity.package,), True))
    secrets = []
    for name, names, is_client in wanted:
        secrets.append((yield from _secret(identity.namespace, name, names, authority, is_client=is_client)))
    ran = ran._replace(accounts=(*ran.accounts, *secrets))
    return Certified(ran, _encoded(authority.certificate), new)


def _authority(namespace: str) -> Generator[Effect, Any, tuple[Certificate, Object | None]]:
    """Return the authority of a namespace, and the Secret to create for it if there is none."""
    live = yield from applying.read(SECRET, namespace, AUTHORITY)
    if live is None:
        made: Certificate = yield Certify((AUTHORITY,))
        data = {_CRT: _encoded(made.certificate), _KEY: _encoded(made.key)}
        meta = {"name": AUTHORITY, "namespace": namespace}
        return made, {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}
    certificate, key = (_decoded(live, each) for each in (_CRT, _KEY))
    if not (certificate and key):
        raise PermanentError(
            f"Secret {namespace}/{AUTHORITY} has no {_CRT} or no {_KEY}: complete it, or delete it to "
            "have a new authority made",
            reason="InvalidSecret",
        )
    return Certificate(certificate, key), None


def _secret(
    namespace: str, name: str, names: tuple[str, ...], authority: Certificate, *, is_client: bool
) -> Generator[Effect, Any, Object]:
    live = yield from applying.read(SECRET, namespace, name)
    data = _usable(live or {}, names, authority)
    if not data:
        made: Certificate = yield Certify(names, authority, is_client)
        data = {_CRT: made.certificate, _KEY: made.key, _CA: authority.certificate}
        data = {key: _encoded(text) for key, text in data.items()}
    meta = {"name": name, "namespace": namespace, "annotations": {CERTIFIED: ",".join(names)}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}


def _usable(live: Object, names: tuple[str, ...], authority: Certificate) -> dict[str, str]:
    """Return the data of a live Secret if its certificate is still the wanted one, else {}."""
    annotations = (live.get("metadata") or {}).get("annotations") or {}
    given = {key: _decoded(live, key) for key in (_CRT, _KEY, _CA)}
    is_same = annotations.get(CERTIFIED) == ",".join(names) and given[_CA] == authority.certificate
    return {key: _encoded(text) for key, text in given.items()} if is_same and all(given.values()) else {}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decoded(secret: Mapping[str, Any], key: str) -> str:
    """Return a text of a Secret, "" if it is not there or no text."""
    try:
        return base64.b64decode((secret.get("data") or {}).get(key) or "", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def with_authority(objects: Iterable[Object], ca: str, service: str, namespace: str) -> list[Object]:
    """Return objects that have the API server call their package with its Service and its authority.

    ca: the authority's certificate in base64, "" if nothing is called
    """
    client = {"caBundle": ca, "service": {"name": service, "namespace": namespace, "port": SERVED_PORT}}
    return [_calling(each, client) for each in objects] if ca else list(objects)


def _calling(obj: Object, client: Mapping[str, Any]) -> Object:
    kind, spec = kind_of(obj), obj.get("spec") or {}
    if kind.kind in _HOOKS and kind.group == "admissionregistration.k8s.io":
        hooks = [
            {**each, "clientConfig": _client(each.get("clientConfig") or {}, client)}
            for each in obj.get("webhooks") or ()
        ]
        return {**obj, "webhooks": hooks}
    conversion = spec.get("conversion") or {}
    if (kind.group, kind.kind) != CRD or conversion.get("strategy") != "Webhook":
        return obj
    webhook = conversion.get("webhook") or {}
    changed = {**webhook, "clientConfig": _client(webhook.get("clientConfig") or {}, client)}
    return {**obj, "spec": {**spec, "conversion": {**conversion, "webhook": changed}}}


def _client(given: Mapping[str, Any], client: Mapping[str, Any]) -> Object:
    """Return a clientConfig that keeps the path that the package gives."""
    service = {**(given.get("service") or {}), **client["service"]}
    return {"caBundle": client["caBundle"], "service": service}
