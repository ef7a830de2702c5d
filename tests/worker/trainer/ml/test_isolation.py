"""What the trainer's process must not load."""

import subprocess
import sys

CODE = """
import sys
import worker.trainer.rank
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"django", "celery", "rest_framework", "pydantic_settings", "clawplatform"}))
"""


def test_the_trainer_loads_no_django_and_no_celery() -> None:
    answer = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"
