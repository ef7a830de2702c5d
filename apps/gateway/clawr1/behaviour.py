"""What Claw-R1's calls mean in this platform's pool. Synchronous, through services; knows no HTTP.

Its clients name trajectories by `trajectory_uid` (ours, or one that they made up) and groups by `prompt_uid`.
"""

from collections.abc import Iterable
from itertools import groupby

from django.db import transaction

from apps.accounts.access import Caller
from apps.accounts.models import Agent, ApiKey, Project
from apps.accounts.services import create_agent, create_key
from apps.core.contracts.arrays import pack_ids
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound, Unavailable
from apps.core.ids import is_id
from apps.core.texts import is_storable
from apps.feedback.models import Source
from apps.feedback.services import add_label
from apps.feedback.submitting import submit_rewarded_steps
from apps.gateway.clawr1.shapes import CompleteBody, RegisterBody, RewardBody, StepBody
from apps.gateway.clawr1.verifying import verify
from apps.gateway.dialect import Json
from apps.trajectories import services as trajectories
from apps.trajectories.generations import find_steps_saying
from apps.trajectories.models import Channel, Trajectory, TrajectoryState

AGENT_NAME = "Claw-R1"
AGENT_SLUG = "claw-r1"
NO_PROMPT = "1"
"""What Claw-R1 calls the prompt of everything of which it knows none: those are no group."""
_MAX_UID = 200


def find_door_key(project_slug: str) -> ApiKey:
    """Return the key as which this door's clients speak, made when the door first opens.

    Raises Unavailable when the setting names no project, Forbidden when the key was switched off.
    """
    project = Project.objects.select_related("team").filter(slug=project_slug).first()
    if project is None:
        raise Unavailable(f"CLAW_CLAWR1_PROJECT names no project: there is no {project_slug!r}")
    with transaction.atomic():
        Project.objects.select_for_update().get(pk=project.pk)  # two processes may open the door at once
        agent = Agent.objects.filter(project=project, slug=AGENT_SLUG).first() or _make_agent(project)
    keys = ApiKey.objects.usable().filter(agent=agent).select_related("agent__project__team")
    key = keys.order_by("-id").first()
    if key is None:
        raise Forbidden(
            f"every key of the agent {AGENT_SLUG} is switched off: make it a new one to open this door again"
        )
    return key


def _make_agent(project: Project) -> Agent:
    agent = create_agent(project=project, name=AGENT_NAME, actor="CLAW_CLAWR1_PROJECT")
    create_key(agent=agent, actor="CLAW_CLAWR1_PROJECT", name="for clients without a key")
    return agent


def init_trajectory(key: ApiKey) -> Trajectory:
    """Open a trajectory of which nothing is known yet."""
    return trajectories.open_trajectory(agent=key.agent, key=key)


def find_trajectory(key: ApiKey, uid: str, *, opens: bool, channel: str = Channel.TRAIN) -> Trajectory:
    """Return the trajectory that a client calls `uid`. Raises NotFound, unless `opens` and the client made it up."""
    if is_id(uid, "traj"):
        return trajectories.find_trajectory(caller=Caller(key=key), trajectory_id=uid)
    if len(uid) > _MAX_UID or not is_storable(uid):
        raise InvalidInput("this is no trajectory_uid", field="trajectory_uid")
    session_key = f"{AGENT_SLUG}/{uid}"
    if opens:
        return trajectories.find_or_open_session(agent=key.agent, key=key, session_key=session_key, channel=channel)
    named = Trajectory.objects.filter(agent=key.agent, key=key, session_key=session_key)
    found = named.select_related("project__team", "agent").order_by("-id").first()
    if found is None:
        raise NotFound(f"there is no trajectory {uid!r}")
    return found


def place_call(key: ApiKey, uid: str, prompt_uid: str) -> str:
    """Return the id of the trajectory to which a model call belongs, and put it into its group."""
    return _join_group(find_trajectory(key, uid, opens=True), prompt_uid).pk


def register_trajectory(key: ApiKey, uid: str, prompt_uid: str, body: RegisterBody) -> None:
    """Say what a trajectory is about. Never needed: a call without it has the channel train and no metadata."""
    trajectory = find_trajectory(key, uid, opens=True, channel=body.channel or Channel.TRAIN)
    trajectories.describe_trajectory(
        trajectory=trajectory, channel=body.channel or "", group=_group(prompt_uid), metadata=body.metadata
    )


def complete_trajectory(key: ApiKey, uid: str, prompt_uid: str, body: CompleteBody) -> None:
    """Reward and complete. Saying the same again is fine; without its channel a trajectory completes in its own."""
    trajectory = find_trajectory(key, uid, opens=False)
    if body.channel and body.channel != trajectory.channel:
        trajectory = _change_channel(trajectory, body.channel)
    if trajectory.state == TrajectoryState.OPEN:
        _join_group(trajectory, prompt_uid)
    if body.reward is not None:
        add_label(
            caller=Caller(key=key),
            trajectory=trajectory,
            value=body.reward,
            source=Source.ENVIRONMENT,
            idempotency_key=f"{AGENT_SLUG}/{trajectory.pk}",
        )
    trajectories.complete_trajectory(trajectory=trajectory)


def _change_channel(trajectory: Trajectory, channel: str) -> Trajectory:
    """What was registered for validation never becomes training data by a word at its end."""
    if trajectory.channel == Channel.VAL:
        raise Conflict(f"the trajectory {trajectory.pk} was registered in the channel val, not {channel}")
    return trajectories.describe_trajectory(trajectory=trajectory, channel=channel)


def submit_steps(key: ApiKey, steps: Iterable[StepBody], *, channel: str) -> int:
    """Add the steps to their trajectories, all or none, and return how many there were; complete those that say so."""
    ordered = sorted(steps, key=lambda step: step.trajectory_uid)
    groups = [(uid, list(members)) for uid, members in groupby(ordered, key=lambda step: step.trajectory_uid)]
    finished = []
    with transaction.atomic():
        for uid, members in groups:
            trajectory = find_trajectory(key, uid, opens=True, channel=channel)
            _submit(key, trajectory, members, channel=channel)
            if any(step.is_last for step in members):
                finished.append(trajectory)
    for trajectory in finished:  # outside: completing waits for the recorder, which may wait for our rows
        trajectories.complete_trajectory(trajectory=trajectory)
    return len(ordered)


def _submit(key: ApiKey, trajectory: Trajectory, steps: list[StepBody], *, channel: str) -> None:
    if channel != trajectory.channel:
        raise Conflict(f"the trajectory {trajectory.pk} is in the channel {trajectory.channel}, not {channel}")
    if trajectory.state == TrajectoryState.OPEN:
        _join_group(trajectory, steps[0].prompt_uid)
    submit_rewarded_steps(
        caller=Caller(key=key),
        trajectory=trajectory,
        drafts=[step.draft() for step in steps],
        rewards=[step.reward for step in steps],
    )


def find_reward(key: ApiKey, body: RewardBody) -> tuple[float, Json]:
    """Return the reward that was given to these tokens, else what the project's rules say; and whence it comes.

    Raises NotFound where neither has a word on them, and Unavailable.
    """
    prompt, completion = pack_ids(body.prompt_ids), pack_ids(body.response_ids)
    for step in find_steps_saying(project_id=key.agent.project_id, prompt=prompt, completion=completion):
        reward = step.reward if step.reward is not None else step.trajectory.reward
        if reward is not None:
            return reward, {"step": step.pk, "trajectory": step.trajectory_id}
    return verify(key, body)


def _join_group(trajectory: Trajectory, prompt_uid: str) -> Trajectory:
    group = _group(prompt_uid)
    if not group or trajectory.group == group:
        return trajectory
    if trajectory.group:
        raise Conflict(f"the trajectory {trajectory.pk} belongs to the prompt {trajectory.group!r}, not {prompt_uid!r}")
    return trajectories.describe_trajectory(trajectory=trajectory, group=group)


def _group(prompt_uid: str) -> str:
    """Return the group's name; the caller's text must fit its column."""
    if len(prompt_uid) > 100 or not is_storable(prompt_uid):
        raise InvalidInput("this is no prompt_uid: it may have 100 characters", field="prompt_uid")
    return "" if prompt_uid == NO_PROMPT else prompt_uid
