"""What goes wrong around workers: networks, topics, offsets, records, and the workers themselves."""
