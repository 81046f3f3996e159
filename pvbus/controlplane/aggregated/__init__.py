"""The package store behind another API server: its objects are in a cluster, not in a file."""
