"""The example fleets of `pvbus up --example`: their repositories, and the objects to apply."""
