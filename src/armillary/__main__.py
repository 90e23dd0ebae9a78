"""`python -m armillary`, and `torchrun -m armillary` on several machines."""

import sys

from armillary.cli import main

if __name__ == "__main__":
    sys.exit(main())
