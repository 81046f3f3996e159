"""What other services and wings may use of a package revision."""
