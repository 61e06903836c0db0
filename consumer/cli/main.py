"""``recallstream``. Imports nothing that takes time: from the first moment an interrupt is an exit code."""

import sys
from collections.abc import Sequence

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code: 0 done, 1 failed, 2 bad usage or settings, 130 interrupted."""
    try:
        from consumer.cli.commands import run

        return run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
