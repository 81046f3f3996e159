"""The functions that the settings provide, beside the built-in ones."""

from pvbus.controlplane.packages.functions.registry import BUILTIN_PREFIX, FunctionRegistry
from pvbus.controlplane.packages.programs import isolation
from pvbus.controlplane.packages.settings import StoreOptions
from pvbus.runtime.process.settings import ApiServerConfig


def functions_of(config: ApiServerConfig) -> FunctionRegistry:
    """Return the functions of an API server. Raises: UsageError for one that cannot run."""
    return FunctionRegistry(
        dict(config.functions),
        allow_exec=config.allow_exec,
        isolated=config.isolate_functions,
        engine=config.function_engine,
        runner=config.function_runner,
    )


def store_options(config: ApiServerConfig, registry: FunctionRegistry) -> StoreOptions:
    """Return the options of a package store with these functions."""
    return StoreOptions(
        fetch_seconds=config.fetch_seconds,
        poll_seconds=config.poll_seconds,
        local_folders=config.local_folders,
        functions=registry.digest,
    )


def isolation_problem(config: ApiServerConfig) -> str:
    """Return why programs are not isolated although they should be, "" if they are or if there are none."""
    has_programs = config.allow_exec or not all(
        target.startswith(BUILTIN_PREFIX) for target in config.functions.values()
    )
    if not has_programs or not config.isolate_functions or isolation():
        return ""
    return (
        "functions: your programs run with network, because this system permits no user namespaces or has "
        "no `unshare`"
    )
