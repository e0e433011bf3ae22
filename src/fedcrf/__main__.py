"""``python -m fedcrf``."""

from fedcrf.cli import main

if __name__ == "__main__":
    main()
