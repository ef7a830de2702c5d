"""Keeps a worker that was given up for dead from changing a run that another one holds by now."""

from apps.training.models import Attempt, AttemptState, Run


class AttemptLost(Exception):
    """Another worker may hold this run: stop, and change nothing."""


def lock_attempt(attempt: Attempt) -> Run:
    """Inside a transaction: return the attempt's run, both rows locked. Raises AttemptLost when it is taken over."""
    run = Run.objects.select_for_update(of=("self",)).select_related("policy", "start_version").get(pk=attempt.run_id)
    if not Attempt.objects.select_for_update().filter(pk=attempt.pk, state=AttemptState.RUNNING).exists():
        raise AttemptLost(f"attempt {attempt.number} of {run.id} was taken over")
    return run
