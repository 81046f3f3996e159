"""`make chaos`: the services on a real Kafka and real API servers, under faults, with an own checker."""
