"""A step played again: the prompt that it answered, put to versions that an engine holds. Nothing is captured."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from apps.accounts.models import Project
from apps.console.transcript import Message, read_message
from apps.core.errors import InvalidInput, NotFound, ServiceError
from apps.feedback.preferences.sides import Side
from apps.feedback.preferences.sides import read_message as read_answer
from apps.registry.models import Version
from apps.registry.speaking import Speaker, find_live_version, find_version_speaker, list_held_versions
from apps.trajectories.models import Step
from apps.trajectories.trie import load_messages, load_tools

MOST_AT_ONCE = 4
PATIENCE_S = 60.0
MOST_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample."""

    temperature: float
    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class Played:
    """What one version answered, or why it did not. `raw` is the message to keep; `is_same`: the step said it too."""

    version: Version
    answer: Message | None = None
    raw: dict[str, Any] | None = None
    n_tokens: int = 0
    is_same: bool = False
    error: str = ""


def find_step(project: Project, step_id: str) -> Step:
    """Return a step of the project or raise NotFound."""
    rows = Step.objects.select_related("trajectory__project__team", "trajectory__agent", "version__policy", "parent")
    step = rows.filter(trajectory__project=project, trajectory__deleted_at=None, pk=step_id).first()
    if step is None:
        raise NotFound("this project has no such step")
    return step


def find_live(project: Project) -> Version | None:
    """Return the version that the project's agents speak to, if there is one."""
    try:
        return find_live_version(project.pk)
    except NotFound:
        return None


def choose_first(held: Sequence[Version], *, live: Version | None) -> list[str]:
    """Return what is chosen before anybody chose: the live version where an engine holds it, else the newest held."""
    if live is not None and live in held:
        return [live.pk]
    return [version.pk for version in held[:1]]


def choose_versions(project: Project, ids: Sequence[str]) -> list[Version]:
    """Return the chosen versions among those that an engine holds. Raises InvalidInput for none, many, or others."""
    held = {version.pk: version for version in list_held_versions(project.pk)}
    if not 1 <= len(set(ids)) <= MOST_AT_ONCE or not set(ids) <= set(held):
        raise InvalidInput(f"choose 1 to {MOST_AT_ONCE} versions that an engine holds", field="version")
    return [held[pk] for pk in dict.fromkeys(ids)]


def play(step: Step, versions: Sequence[Version], *, sampling: Sampling) -> list[Played]:
    """Ask the versions at the same time; one that fails says why and stops no other."""
    messages = load_messages(step.pk)
    options: dict[str, Any] = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
    if tools := load_tools(project_id=step.trajectory.project_id, digest=step.tools_digest):
        options["tools"] = tools
    speakers = [(version, _find(version)) for version in versions]
    said = Side(step=step).said

    def ask(pair: tuple[Version, Speaker | ServiceError]) -> Played:
        version, speaker = pair
        if isinstance(speaker, ServiceError):
            return Played(version=version, error=speaker.message)
        try:  # no database in here: these threads would keep its connections
            given = speaker.ask(messages, read_s=PATIENCE_S, **options)
            raw = {name: given.message[name] for name in ("content", "tool_calls") if given.message.get(name)}
            kept = read_answer(raw)
        except ServiceError as error:
            return Played(version=version, error=error.message)
        is_same = Side(message=kept).said == said
        return Played(version=version, answer=read_message(kept), raw=kept, n_tokens=given.n_tokens, is_same=is_same)

    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return list(pool.map(ask, speakers))


def _find(version: Version) -> Speaker | ServiceError:
    try:
        return find_version_speaker(version)
    except ServiceError as error:
        return error
