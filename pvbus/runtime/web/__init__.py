"""The fleet's page: a reader of the bus, and an HTTP server for browsers. It writes nothing anywhere."""
