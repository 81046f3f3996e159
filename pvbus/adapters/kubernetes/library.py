"""What is used of kubernetes-asyncio: its reader of kubeconfigs and of a pod's account, without its models.

`import kubernetes_asyncio` imports 840 modules of generated models and APIs: 0.2 s of CPU and 33 MB in every
process, of which nothing is used, as pvbus sends its requests itself. So its packages are entered as bare
ones while the modules that are used are imported from them, and are removed then: another import of the
library in the same process gets all of it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType

_CLIENT = "kubernetes_asyncio.client"
_BARE = ("kubernetes_asyncio", _CLIENT, f"{_CLIENT}.models")
"""The packages whose own code imports everything; each after the one that it is in."""


def _bare(name: str) -> ModuleType:
    """Return a package that knows where its modules are, and has run nothing. Raises ImportError."""
    spec = find_spec(name)
    if spec is None:
        raise ImportError(f"the package {name} is not installed", name=name)
    return module_from_spec(spec)


@contextmanager
def _bare_packages() -> Iterator[None]:
    """Have imports of the library's modules not import their packages, unless they are imported already."""
    if _BARE[0] in sys.modules:
        yield
        return
    try:
        for name in _BARE:
            sys.modules[name] = _bare(name)
        vars(sys.modules[_CLIENT]).update(
            Configuration=import_module(f"{_CLIENT}.configuration").Configuration,
            ApiClient=import_module(f"{_CLIENT}.api_client").ApiClient,
        )
        yield
    finally:
        for name in _BARE:
            sys.modules.pop(name, None)


with _bare_packages():
    from kubernetes_asyncio.client.configuration import Configuration
    from kubernetes_asyncio.config import ConfigException, incluster_config, load_incluster_config
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader, KubeConfigMerger

__all__ = [
    "ConfigException",
    "Configuration",
    "KubeConfigLoader",
    "KubeConfigMerger",
    "incluster_config",
    "load_incluster_config",
]
