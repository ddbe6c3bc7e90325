"""``python -m soloflight`` is ``soloflight``, where the script is not on the path."""

from soloflight.cli import main

if __name__ == "__main__":
    main(prog_name="soloflight")
