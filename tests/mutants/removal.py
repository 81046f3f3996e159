"""Mutations of unroll and of the renderer: who the children are, what may go, and who writes it."""

from tests.mutants.mutation import Mutation

REMOVAL: tuple[Mutation, ...] = ()
