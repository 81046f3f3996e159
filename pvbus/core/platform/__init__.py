"""The services that install packages that depend on each other, and what they share."""
