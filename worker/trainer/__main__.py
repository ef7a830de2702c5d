"""`python -m worker.trainer RUN_DIR`: see launch.py."""

import sys

from worker.trainer.launch import main

sys.exit(main(sys.argv[1:]))
