"""Reads packages from image registries, git and the source itself: the port `pvbus.ports.sources`."""
