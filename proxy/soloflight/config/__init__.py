"""F2, settings: what may be set, how it is read, and what is wrong with it.

Here live the settings' shapes, their defaults, units, sources (flag > environment > file > default) and
the readable fault lines. Values leave this package checked and immutable. Nothing may be opened,
started or contacted from here but the config file itself.
"""
