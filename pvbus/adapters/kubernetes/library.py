"""What is used of kubernetes-asyncio: its reader of kubeconfigs and of a pod's account, without its models.

`import kubernetes_asyncio` imports 840 modules of generated models and APIs: 0.2 s of CPU and 33 MB in every
process, of which nothing is used, as pvbus sends its requests itself. So its packages are entered as bare
ones while the modules that are used are imported from them; and urllib3, too, of which `Configuration` takes
a function that is not called here. All of them are removed then: another import of the library in the same
process gets a whole one of its own.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType

_LIBRARY = "kubernetes_asyncio"
_CLIENT = f"{_LIBRARY}.client"
_BARE = (_LIBRARY, _CLIENT)
"""The packages whose own code imports everything; each after the one that it is in."""
_UNUSED = "urllib3"


def _bare(name: str) -> ModuleType:
    """Return a package that knows where its modules are, and has run nothing. Raises ImportError."""
    spec = find_spec(name)
    if spec is None:
        raise ImportError(f"the package {name} is not installed", name=name)
    return module_from_spec(spec)


@contextmanager
def _bare_packages() -> Iterator[None]:
    """Have imports of the library's modules not import their packages, unless they are imported already."""
    if _LIBRARY in sys.modules:
        yield
        return
    bare = (*_BARE, *((_UNUSED,) if _UNUSED not in sys.modules else ()))
    try:
        for name in bare:
            sys.modules[name] = _bare(name)
        vars(sys.modules[_CLIENT]).update(
            Configuration=import_module(f"{_CLIENT}.configuration").Configuration,
            ApiClient=object,  # only what makes a client uses it, which is not used here
        )
        yield
    finally:
        for name in [name for name in sys.modules if name in bare or name.startswith(f"{_LIBRARY}.")]:
            del sys.modules[name]


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
