"""Transforms and predicates: those of Apache that make sense on bytes, and the chain that applies
them."""
