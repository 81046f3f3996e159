"""The services as processes: `python -m services.<name>`."""

from pvbus.runtime.collector import relax_collector

relax_collector()  # before everything else is imported, which makes many objects and no garbage
