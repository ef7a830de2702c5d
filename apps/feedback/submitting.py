"""Steps that an agent made by itself, together with what it says they were worth: all of it is stored, or none.

Knows no HTTP; the steps are `apps/trajectories/submitting.py`'s, the labels `services.py`'s.
"""

from collections.abc import Sequence

from django.db import transaction

from apps.accounts.access import Caller
from apps.feedback.services import label_steps
from apps.trajectories.models import Trajectory
from apps.trajectories.submitting import StepDraft, Submitted, submit_steps


@transaction.atomic
def submit_rewarded_steps(
    *, caller: Caller, trajectory: Trajectory, drafts: Sequence[StepDraft], rewards: Sequence[float | None]
) -> list[Submitted]:
    """Add the drafts and the reward of each (None: nothing is said of it; that is not zero), and return what became of
    them. Raises what `submit_steps` and `label_steps` raise.
    """
    submitted = submit_steps(trajectory=trajectory, drafts=drafts)
    values = {item.step.pk: reward for item, reward in zip(submitted, rewards, strict=True) if reward is not None}
    if values:
        label_steps(caller=caller, trajectory=trajectory, values=values)
    return submitted
