"""`manage.py create_project`: a project with policy, agents and keys.

Standard output is one line of JSON, for scripts; what a person wants to know beside it goes to standard error.
"""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.errors import ServiceError
from clawplatform.env import read_env
from clawplatform.seeding import create_project_with_keys


class Command(BaseCommand):
    help = "Create a project whose policy starts at the base model, and print its keys as JSON (they are kept nowhere)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--agent", action="append", default=[], help="name of an agent; may be repeated")

    def handle(self, *_args: Any, **options: Any) -> None:
        env = read_env()
        try:
            made = create_project_with_keys(
                env, name=options["name"], agent_names=tuple(options["agent"]) or ("First agent",)
            )
        except ServiceError as error:
            raise CommandError(error.message) from error
        self.stdout.write(json.dumps(made))
        self.stderr.write(
            f"Project {options['name']!r} of the team {made['team']!r}: {made['url']}\n"
            "Its keys, printed as JSON, are shown only now. More are made on the page of an agent, under Agents.",
            style_func=str,
        )
