"""One check of everything that needs a GPU: whether it is right, and whether it is as fast as memory allows."""
