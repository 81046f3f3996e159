"""The parts of the chaos run that need no Kafka: its checker, its plan, its order of facts, its proxy."""
