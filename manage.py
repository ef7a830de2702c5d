#!/usr/bin/env python
"""Entry point of Django's commands, `up` and `doctor` among them."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawplatform.settings")
    try:
        from django.core.management import execute_from_command_line  # noqa: PLC0415 (settings first)

        from clawplatform.env import BadSettings  # noqa: PLC0415 (as above)
    except ModuleNotFoundError as error:
        sys.exit(f"Error: {sys.executable} lacks {error.name}: run `make setup` first, and .venv/bin/python manage.py")

    try:
        execute_from_command_line(sys.argv)
    except BadSettings as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
