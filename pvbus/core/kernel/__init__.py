"""What every controller stands on: effects, keys, rows, topics, markers, rights."""
