"""`manage.py seed`: the first start's contents, without starting anything."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.errors import ServiceError
from clawplatform.env import read_env
from clawplatform.seeding import credentials_path, seed_platform


class Command(BaseCommand):
    help = "Make the admin, the sample project with its keys, its policy and the engines, where they are missing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--engine-url", action="append", default=[], help="engine to register; may be repeated")

    def handle(self, *_args: Any, **options: Any) -> None:
        env = read_env()
        try:
            seeded = seed_platform(env, engine_urls=(*env.engine_urls, *options["engine_url"]))
        except ServiceError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"project {seeded.project}, admin {seeded.email}; secrets are in {credentials_path(env)}")
