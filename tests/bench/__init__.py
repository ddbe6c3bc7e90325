"""Side-by-side measurements: ratios in one run, alternating, the server on one core and the load on the other.

Nothing here is a test of time: what is asserted are counts (upstream calls, statuses); figures are printed as tables.
"""
