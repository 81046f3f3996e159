"""The documents, and the generator of the parts that the code knows."""
