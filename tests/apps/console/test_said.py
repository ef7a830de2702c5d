"""What is said of a trajectory on its page: fields, steps, words; corrections; side by side; what reviewers may see."""

import json
from collections.abc import Callable

import pytest
from django.test import Client

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.console.queries.comparing import mark_words
from apps.core.ids import new_id
from apps.feedback.graders.services import VersionDraft, create_grader
from apps.feedback.models import Label, Source
from apps.feedback.preferences.models import Preference
from apps.feedback.preferences.services import add_correction
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import take_review
from apps.feedback.rescoring import change_schema
from apps.feedback.services import Answer, Author, add_label, add_labels, take_back_label, write_answers
from apps.trajectories.models import Step, Trajectory

AddTrajectory = Callable[..., Trajectory]
SPOKEN = "It is on its way. It is late."


@pytest.fixture
def trajectory(add_trajectory: AddTrajectory) -> Trajectory:
    return add_trajectory(step={"text": SPOKEN})


@pytest.fixture
def page(trajectory: Trajectory) -> str:
    return f"/p/shop/trajectories/{trajectory.id}"


def test_words_of_a_step_are_labelled_and_taken_back(
    reviewer_browser: Client, page: str, step: Step, trajectory: Trajectory
) -> None:
    form = {"step": step.id, "words": "It is", "place": "1", "v-reward": "-0.5", "t-reward": "vague", "t-comment": "hm"}
    html = reviewer_browser.post(f"{page}/say", form, follow=True).content.decode()
    label = Label.objects.get(field="reward")
    assert (label.span, label.value, label.text) == ((18, 23), -0.5, "vague")
    for words in ("vague", '<q class="quote">It is</q>', "mate@example.org"):
        assert words in html
    trajectory.refresh_from_db()
    assert trajectory.reward == -0.5
    undone = reviewer_browser.post(f"/p/shop/labels/{label.pk}/unsay", follow=True).content.decode()
    assert "vague" not in undone
    assert reviewer_browser.post(f"/p/shop/labels/{label.pk}/unsay").status_code == 409  # a stale undo


def test_htmx_gets_the_panel_and_an_undo(reviewer_browser: Client, page: str) -> None:
    answer = reviewer_browser.post(f"{page}/say", {"v-reward": "1.0"}, headers={"HX-Request": "true"})
    html = answer.content.decode()
    assert html.lstrip().startswith('<section class="sheet" id="said-panel"')
    assert 'id="reward-panel"' in html
    assert "+1.00" in html.split('id="reward-panel"')[1]
    assert html.count("formaction=") == 1  # the label stands in one of the two panels
    assert "/unsay/undo" in answer["HX-Trigger"]


def test_the_panel_speaks_in_the_schemas_words(
    reviewer_browser: Client, page: str, step: Step, trainer: User, project: Project
) -> None:
    choices = [{"name": "so_so", "title": "So so"}, {"name": "very_good"}]
    fields = [{"name": "tone_of_it", "kind": "choice", "title": "Which tone?", "choices": choices}]
    change_schema(caller=Caller(user=trainer), project=project, definition={"fields": fields})
    form = {"step": step.id, "words": "late", "v-tone_of_it": '"so_so"', "t-comment": "hm"}
    html = reviewer_browser.post(f"{page}/say", form, follow=True).content.decode()
    for words in (
        "Said: Which tone?, Comment",
        '<span class="strong">Which tone? So so</span>',
        'data-about="Which tone? So so"',
        'data-about="Comment. hm"',
        'Take back<span class="visually-hidden"> Which tone? by',
    ):
        assert words in html, words
    label = Label.objects.get(field="tone_of_it")
    undone = reviewer_browser.post(f"/p/shop/labels/{label.pk}/unsay", follow=True).content.decode()
    assert "Taken back: Which tone?" in undone


def test_what_a_step_is_worth_follows_what_is_said_of_it(reviewer_browser: Client, page: str, step: Step) -> None:
    """Its buttons and its reward stand at the step, not in the panel that was pressed in."""

    def post(address: str, form: dict[str, str]) -> str:
        answer = reviewer_browser.post(address, form, headers={"HX-Request": "true"}).content.decode()
        return answer.split(f'id="foot-{step.id}" hx-swap-oob="true"')[1].split("</footer>")[0]

    assert "step reward" in (said := post(f"{page}/say", {"step": step.id, "v-reward": "-1.0"}))
    assert said.count('aria-pressed="true"') == 1
    undone = post(f"/p/shop/labels/{Label.objects.get().pk}/unsay", {})
    assert ("step reward" in undone, 'aria-pressed="true"' in undone) == (False, False)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "nothing is filled in"),
        ({"v-reward": "7"}, "from -1 to 1"),
        ({"t-comment": "x", "words": "It is"}, "Which step says these words"),
        ({"t-comment": "x", "words": "nowhere", "step": "0"}, "choose its view Plain"),
        ({"t-mood": "x"}, "has no field"),
        ({"t-comment": "x", "step": "9"}, "no such step"),
    ],
)
def test_what_cannot_be_said_is_told(reviewer_browser: Client, page: str, form: dict[str, str], words: str) -> None:
    answer = reviewer_browser.post(f"{page}/say", form)
    assert answer.status_code in {400, 404}
    assert words in answer.content.decode()
    assert not Label.objects.exists()


def test_an_answer_is_corrected_and_taken_back(reviewer_browser: Client, page: str, step: Step) -> None:
    address = f"{page}/steps/{step.id}/correct"
    html = reviewer_browser.get(address).content.decode()
    assert f">{SPOKEN}</textarea>" in html
    same = reviewer_browser.post(address, {"message": SPOKEN})
    assert (same.status_code, "this is what the step said" in same.content.decode().lower()) == (400, True)
    saved = reviewer_browser.post(address, {"message": "Tomorrow.", "text": "be exact"}, follow=True).content.decode()
    assert "Tomorrow." in saved
    row = Preference.objects.standing().get()
    assert f'<form method="post" action="/p/shop/preferences/{row.pk}/undo">' in saved
    assert "These words, better than what the step said:" in saved
    assert row.chosen_message == {"role": "assistant", "content": "Tomorrow."}
    assert reviewer_browser.post(f"/p/shop/preferences/{row.pk}/unsay").status_code == 302
    assert reviewer_browser.post(f"/p/shop/preferences/{row.pk}/unsay").status_code == 409


def test_two_stand_side_by_side(viewer_browser: Client, page: str, add_trajectory: AddTrajectory) -> None:
    assert "With which?" in viewer_browser.get(f"{page}/diff").content.decode()
    other = add_trajectory(step={"text": "No idea."})
    html = viewer_browser.get(f"{page}/diff?with={other.pk}").content.decode()
    assert SPOKEN in html
    assert "No idea." in html
    same = add_trajectory(step={"text": SPOKEN})
    assert "Step 0 is the same in both" in viewer_browser.get(f"{page}/diff?with={same.pk}").content.decode()
    assert "both were asked the same" in html
    missing = viewer_browser.get(f"{page}/diff?with=nonsense")
    assert missing.status_code == 404
    for words in ("no such trajectory", 'value="nonsense"', f"?with={other.pk}"):  # the form stays, and its suggestions
        assert words in missing.content.decode()


def test_arguments_that_differ_are_marked_and_who_is_compared_is_not_offered(
    viewer_browser: Client, add_trajectory: AddTrajectory
) -> None:
    left, right = (add_trajectory(group="g", step={"answer": call_weather(town)}) for town in ("Santipe", "Santiago"))
    page = f"/p/shop/trajectories/{left.pk}/diff"
    html = viewer_browser.get(f"{page}?with={right.pk}").content.decode()
    assert "<mark>&quot;Santipe&quot;\n</mark>" in html
    assert "<mark>&quot;Santiago&quot;\n</mark>" in html
    assert f'href="?with={right.pk}"' not in html
    assert f'href="?with={right.pk}"' not in viewer_browser.get(f"{page}?with={right.pk}&q=turns>0").content.decode()
    assert f'href="?with={right.pk}"' in viewer_browser.get(page).content.decode()


def call_weather(town: str) -> bytes:
    function = {"name": "weather", "arguments": json.dumps({"town": town})}
    call = {"id": "call_1", "type": "function", "function": function}
    return json.dumps({"role": "assistant", "content": "Let me look.", "tool_calls": [call]}).encode()


def test_who_is_likely_meant_is_offered(
    viewer_browser: Client, trajectory: Trajectory, page: str, add_trajectory: AddTrajectory
) -> None:
    alike = add_trajectory(title=trajectory.title)
    other = add_trajectory(title="the weather in Lima")
    html = viewer_browser.get(f"{page}/diff").content.decode()
    assert 0 < html.index(f"?with={alike.pk}") < html.index(f"?with={other.pk}")
    assert f"?with={trajectory.pk}" not in html
    found = viewer_browser.get(f"{page}/diff?q=turns>5").content.decode()
    assert "This search finds no other trajectory" in found
    wrong = viewer_browser.get(f"{page}/diff?q=colour:red")
    assert (wrong.status_code, 'role="alert"' in wrong.content.decode()) == (400, True)


def test_words_that_differ_are_marked() -> None:
    assert mark_words("It is late.", "It is very late.") == (
        [("It is ", False), ("late.", False)],
        [("It is ", False), ("very ", True), ("late.", False)],
    )
    assert mark_words("yes", "no") is None
    assert mark_words("a " * 2001, "a") is None


def test_which_of_two_is_better_is_said_where_they_stand(
    reviewer_browser: Client, viewer_browser: Client, page: str, trajectory: Trajectory, add_trajectory: AddTrajectory
) -> None:
    other = add_trajectory(step={"text": "No idea."})
    for better, pair in (("left", (trajectory, other)), ("right", (other, trajectory))):
        html = reviewer_browser.post(f"{page}/prefer", {"with": other.pk, "better": better}, follow=True).content
        row = Preference.objects.standing().get()  # the last word alone
        assert (row.trajectory, row.rejected_trajectory, row.is_tie) == (*pair, False)
        assert f"/p/shop/preferences/{row.pk}/undo" in html.decode()
    assert "Worse than" in reviewer_browser.get(page).content.decode()
    assert "Better than" in reviewer_browser.get(f"/p/shop/trajectories/{other.pk}").content.decode()
    reviewer_browser.post(f"{page}/prefer", {"with": other.pk, "better": "tie"})
    assert Preference.objects.standing().get().is_tie
    for form, status in (({"with": other.pk}, 400), ({"better": "left"}, 404), ({"with": trajectory.pk}, 400)):
        assert reviewer_browser.post(f"{page}/prefer", form).status_code == status
    assert reviewer_browser.post(f"{page}/prefer", {"with": trajectory.pk, "better": "left"}).status_code == 400
    assert viewer_browser.post(f"{page}/prefer", {"with": other.pk, "better": "left"}).status_code == 403
    assert reviewer_browser.get(f"{page}/prefer").status_code == 405


def test_a_blind_reviewer_sees_their_own_words_here_and_nobody_elses(
    reviewer_browser: Client,
    page: str,
    trajectory: Trajectory,
    step: Step,
    project: Project,
    trainer: User,
    mate: User,
) -> None:
    add_label(caller=Caller(user=trainer), trajectory=trajectory, value=0.25, text="secret")
    assert "secret" in reviewer_browser.get(page).content.decode()
    caller = Caller(user=trainer)
    queue = create_queue(caller=caller, project=project, settings={"name": "x"})
    add_trajectories(caller=caller, queue=queue, ids=[trajectory.pk])
    own = add_label(caller=Caller(user=mate), trajectory=trajectory, value=None, field="comment", text="my own words")
    pair = add_correction(caller=Caller(user=mate), step=step, message="What I would have said.")
    add_correction(caller=Caller(user=trainer), step=step, message="What another would have said.")
    assert take_review(caller=Caller(user=mate), queue=queue)
    html = reviewer_browser.get(page).content.decode()
    for words in (
        "my own words",
        f"/labels/{own.pk}/unsay",
        "What I would have said.",
        f"/preferences/{pair.pk}/unsay",
    ):
        assert words in html
    assert "What another would have said." not in html
    assert "secret" not in html
    assert "+0.25" not in html
    assert "You were given this in a blind queue" in html


def test_who_may_say(
    viewer_browser: Client, stranger_browser: Client, anonymous_browser: Client, page: str, step: Step, mate: User
) -> None:
    label = add_label(caller=Caller(user=mate), trajectory=step.trajectory, value=1)
    addresses = (f"{page}/say", f"/p/shop/labels/{label.pk}/unsay", f"{page}/steps/{step.id}/correct", f"{page}/prefer")
    for address in addresses:
        assert viewer_browser.post(address).status_code == 403
        assert stranger_browser.post(address).status_code == 404
        assert anonymous_browser.post(address)["Location"].startswith("/login")
        assert viewer_browser.delete(address).status_code == 405
    assert stranger_browser.get(f"{page}/diff").status_code == 404
    assert Label.objects.count() == 1


def test_what_is_missing_is_404(reviewer_browser: Client, page: str) -> None:
    for address in (f"/p/shop/labels/{new_id('labl')}/unsay", "/p/shop/preferences/nonsense/undo"):
        assert reviewer_browser.post(address).status_code == 404
    assert reviewer_browser.get(f"{page}/steps/9/correct").status_code == 404


def test_what_a_grader_says_of_a_step_has_its_name(
    reviewer_browser: Client, trainer: User, page: str, trajectory: Trajectory, step: Step
) -> None:
    caller = Caller(user=trainer)
    version, _ = create_grader(
        caller=caller, project=trajectory.project, name="after", kind="next_state", draft=VersionDraft()
    )
    answers = [Answer(field="reward", value=-1, step=step), Answer(field="hint", text="One word.", step=step)]
    author = Author(source=Source.NEXT_STATE, grader=version)
    write_answers(author=author, trajectory=trajectory, answers=answers)
    html = reviewer_browser.get(page).content.decode()
    assert html.count(f'<a href="/p/shop/graders/{version.grader_id}?version=1">after@v1</a>') == 3
    at_step = html[html.index('id="step-0"') : html.index(f'id="foot-{step.pk}"')]
    assert 'class="step-hint"' in at_step
    assert "One word." in at_step
    assert "after@v1</a> says Reward: −1</span>" in " ".join(at_step.split())


def test_a_hint_has_its_own_authors_verdict_beside_it(
    reviewer_browser: Client, page: str, step: Step, trajectory: Trajectory, mate: User, trainer: User, owner: User
) -> None:
    for user, value in ((mate, -0.5), (trainer, 1), (owner, None)):
        said = [Answer(field="hint", text=f"by {user}", step=step)]
        said += [Answer(field="reward", value=value, step=step)] if value else []
        add_labels(caller=Caller(user=user), trajectory=trajectory, answers=said)
    add_label(caller=Caller(user=owner), trajectory=trajectory, value=0.25)  # of the whole
    add_label(caller=Caller(user=owner), trajectory=trajectory, step=step, span=(0, 2), value=0.75)
    html = reviewer_browser.get(page).content.decode()
    hints = [part.split("</p>")[0] for part in html.split('<p class="step-hint">')[1:]]
    told = [hint.partition("says ")[2].partition("<")[0] for hint in hints]
    assert told == ["Reward: −0.5", "Reward: +1", ""]
    take_back_label(caller=Caller(user=mate), label=Label.objects.get(author=mate, field="reward"))
    assert "−0.5" not in reviewer_browser.get(page).content.decode().split('id="foot-')[0]
