"""What the fleet's page shows, decided without I/O."""
