"""Every page of the table of addresses, with something on it: whoever adds a page adds an example of it here."""

from django.urls import reverse

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, Project, User
from apps.console.urls import urlpatterns
from apps.core.ids import new_id
from apps.feedback.bulk import ACTIONS
from apps.feedback.graders.services import VersionDraft, create_grader
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import take_review
from apps.trajectories.bulk.services import start_job
from apps.trajectories.datasets.models import Export, Import
from apps.trajectories.datasets.services import add_to_dataset, create_dataset, take_snapshot
from apps.trajectories.models import Exchange, Trajectory
from tests.factories.trajectories import ExchangeFactory

# What is no page: files, parts that scripts fetch, and what is shown once to whom made it.
NO_PAGES = {"step_raw", "step_image", "export_file", "short_link", "shown_key", "first_call", "step", "review_tally"}
TRAINERS = {"new_review", "review_settings", "new_grader", "new_grader_version"}


def fill_places(*, project: Project, owner: User, trajectory: Trajectory, run_id: str, key: ApiKey) -> dict[str, str]:
    """Put something on each page of the project; return what stands in addresses, by the name of its place."""
    caller = Caller(user=owner)
    dataset = create_dataset(project=project, caller=caller, name="Refunds")
    add_to_dataset(dataset=dataset, caller=caller, trajectories=Trajectory.objects.filter(project=project))
    told = {"project": project, "created_by": caller.name}
    queue = create_queue(caller=caller, project=project, settings={"name": "Tone", "field_names": ["reward"]})
    add_trajectories(caller=caller, queue=queue, ids=[trajectory.pk])
    review = take_review(caller=caller, queue=queue)
    assert review is not None
    version, _ = create_grader(
        caller=caller, project=project, name="no-hi", kind="regex", draft=VersionDraft(settings={"pattern": "hi"})
    )
    job = start_job(caller=caller, project=project, action=ACTIONS["tag"], settings={"tag": "x"}, ids=[trajectory.pk])
    made = {
        "agent_slug": trajectory.agent.slug,
        "key_id": key.pk,
        "trajectory_id": trajectory.pk,
        "step_id": trajectory.steps.order_by("index")[0].pk,
        "exchange_id": _set_aside(key),
        "job_id": job.pk,
        "run_id": run_id,
        "step": "1",
        "dataset_id": dataset.pk,
        "snapshot_id": take_snapshot(dataset=dataset, caller=caller).pk,
        "export_id": Export.objects.create(query="", shape="tokens", file_format="jsonl", n_total=1, **told).pk,
        "import_id": Import.objects.create(agent=trajectory.agent, file_name="talks.jsonl", n_bytes=9, **told).pk,
        "queue_id": queue.pk,
        "item_id": review.item_id,
        "review_id": review.pk,
        "grader_id": version.grader_id,
    }
    nobody = {"user_id": "user", "view_id": "view", "label_id": "labl", "preference_id": "pref", "token_id": "thmb"}
    nobody |= {"teacher_id": "tchr", "engine_id": "engn", "backfill_id": "bkfl", "object_id": "traj"}
    rest = {"slug": project.slug, "number": "1", "place": "0", "action": "submit", "name": "project"}
    return made | {name: new_id(prefix) for name, prefix in nobody.items()} | rest


def list_places(values: dict[str, str]) -> dict[str, str]:
    """Return all addresses by the names of their views, those that are only posted to as well."""
    places = {
        str(each.name): reverse(str(each.name), kwargs={name: values[name] for name in each.pattern.converters})
        for each in urlpatterns
        if each.name not in NO_PAGES
    }
    return {**places, "snapshot_diff": f"{places['snapshot_diff']}?base={values['snapshot_id']}"}


def _set_aside(key: ApiKey) -> str:
    call: Exchange = ExchangeFactory.create(key=key, fold_error="its request is no JSON")
    return call.pk
