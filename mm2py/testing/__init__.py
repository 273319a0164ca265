"""Fakes that we ship; production code may not import them."""
