"""``python -m fedcrf``, and the command ``fedcrf``: it needs what the core does not install."""

import sys

from fedcrf.extras import mend


def main() -> None:
    """Run the command line; a package that is missing is named with the extra that has it."""
    try:
        from fedcrf.cli import main as command_line

        command_line()
    except KeyboardInterrupt:  # while packages are imported; later the command line says so
        print("fedcrf: error: interrupted; give the same command again", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "fedcrf":
            raise
        print(f"fedcrf: error: {mend(missing)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
