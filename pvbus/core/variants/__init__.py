"""The services that make and keep variants, and what they share."""
