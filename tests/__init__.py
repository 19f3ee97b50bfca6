"""The tests of asyncckpt; a package, so that `from tests.servers import ...` works everywhere."""
