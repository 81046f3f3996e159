"""pvbus: event-driven fleets of Kubernetes package variants."""

__version__ = "0.1.0"
