"""How the ledger is tried: words for its operations, a bounded exhaustive exploration, and planted mutants.

`PYTHONPATH=tests python -m exploration` runs the deep form; the short one is part of the test run.
"""
