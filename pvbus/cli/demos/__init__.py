"""The stories of `pvbus demo`."""
