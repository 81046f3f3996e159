"""The contracts of pvbus as files, and the program that writes those that are generated."""
