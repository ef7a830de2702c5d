"""Runs vLLM as a child and leaves nothing of it behind.

vLLM is a family: a server, an engine core, workers. When the server is killed, the others stay and keep gigabytes, so
somebody has to outlive it and clear up.
"""

import os
import signal
import subprocess
from contextlib import suppress

from worker.parent import end_with_parent


def run_to_the_end(argv: list[str], environment: dict[str, str]) -> int:
    """Run the command in a process group of its own, pass signals on, and return its exit code as a shell would.

    Whatever is left of the group when the command has ended is killed. If we are killed ourselves, the command is told
    to stop by the kernel.
    """
    child = subprocess.Popen(
        argv,
        env=environment,
        process_group=0,
        preexec_fn=end_with_parent(signal.SIGTERM),  # noqa: PLW1509 - no thread runs yet
    )

    def pass_on(number: int, _frame: object) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    code = child.wait()
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return code if code >= 0 else 128 - code
