"""KRM functions that a Kptfile's pipeline can run.

One module per built-in function, each a pure `(items, config) -> FunctionOutput`. `registry` finds
the function of an image, `executable` runs a program with the ResourceList protocol, `item` holds one
object of a package as text, so that a function changes bytes only where it changes values.
"""
