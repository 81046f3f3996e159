"""`pvbus packages`: packages that depend on each other, in a cluster or in files."""
