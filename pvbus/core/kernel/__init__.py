"""What every controller stands on, and what wings share: effects, keys, rows, topics, markers, gates."""
