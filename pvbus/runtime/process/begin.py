"""Sets up a process by its settings, before anything else runs."""

from pvbus.runtime.process.settings import ProcessConfig
from pvbus.telemetry import logs
from pvbus.telemetry.guard import limit_core_files


def configure_process(config: ProcessConfig) -> None:
    """Set up logging, and allow core files if the settings do."""
    logs.configure(config.log_level, config.log_format)
    if config.core_files:
        limit_core_files(None)
