"""Request bodies for tests: JSON as clients write it, with an independent reader; forms; requests around them."""
