"""The admin listener and its page: a desk with as many flights as a test wants, and real processes in a real browser."""
