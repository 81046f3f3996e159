"""Second opinions on expressions: evaluates samples with cel-python, in a process beside the event loop."""
