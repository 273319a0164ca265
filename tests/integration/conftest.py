"""The fixture ``setup`` of this folder's tests."""

from tests.integration import setups

setup = setups.setup
