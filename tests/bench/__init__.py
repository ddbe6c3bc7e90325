"""Side-by-side measurements: ratios in one run, alternating, the server on one core and the load on the other.

``python -m bench`` compares programs: ``contenders`` says who, ``throughput`` and ``together`` what they do, ``reach`` what is
aimed at. The ``test_*_speed`` files look at single steps of the product. Nothing here is a test of time: what must hold are
answers and upstream calls, figures are printed.
"""
