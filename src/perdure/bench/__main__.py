"""``python -m perdure.bench``: the same as ``perdure bench``."""

import sys

from perdure.bench import main

sys.exit(main(sys.argv[1:]))
