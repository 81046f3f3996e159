"""The services that propose, roll out and release, and what they share."""
