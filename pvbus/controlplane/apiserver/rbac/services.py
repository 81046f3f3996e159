"""The services as users of the embedded API server.

Each is the ServiceAccount that it has on a cluster, with the same rights. Its token derives from that of the
data folder: nothing more has to be stored or restored, and who could compute it may do everything anyway.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterator, Sequence

from pvbus.controlplane.apiserver.identity import AUTHENTICATED_GROUP, User
from pvbus.controlplane.apiserver.rbac.builtin import OBSERVED, OBSERVERS, account_of
from pvbus.controlplane.apiserver.rbac.impersonation import account_groups
from pvbus.controlplane.apiserver.rbac.policy import ACCOUNT_PREFIX, Binding
from pvbus.core.kernel.rights import SERVICE_RIGHTS


def tokens(secret: str) -> dict[str, str]:
    """Return the token of each service. secret: the token of the data folder."""
    return {service: _token(secret, service) for service in SERVICE_RIGHTS}


def _token(secret: str, service: str) -> str:
    digest = hmac.digest(secret.encode(), f"service {service}".encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def user_of(service: str) -> User:
    """Return the user that a service is."""
    account = account_of(service)
    groups = (*account_groups(account.namespace), AUTHENTICATED_GROUP)
    return User(f"{ACCOUNT_PREFIX}{account.namespace}:{account.name}", groups)


def bindings_in(namespaces: Sequence[str]) -> Iterator[Binding]:
    """Yield what gives the services their rights in some namespaces alone, whether these exist yet or not."""
    for namespace in namespaces:
        for service in SERVICE_RIGHTS:
            yield _binding(f"pvbus-{service}", service, namespace)
        for service in OBSERVERS:
            yield _binding(OBSERVED, service, namespace)


def _binding(role: str, service: str, namespace: str) -> Binding:
    note = f'role "{role}" of service "{service}" (PVBUS_NAMESPACES)'
    return Binding(role, namespace, ("ClusterRole", role), (account_of(service),), note)
