"""The pages of rewards: graders, tokens of web pages."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.console.grader_form import GraderForm
from apps.core.ids import new_id
from apps.feedback.bulk import ACTIONS
from apps.feedback.graders.backfilling import fill_backfill
from apps.feedback.graders.kinds import KINDS
from apps.feedback.graders.models import Backfill, DailyCalls, DryRun, Grader, GraderVersion, Grading
from apps.feedback.graders.running import grade_due, line_up
from apps.feedback.graders.services import VersionDraft, create_grader
from apps.feedback.graders.trying import run_dry_run
from apps.feedback.models import Label
from apps.feedback.schemas import add_schema
from apps.feedback.services import Answer, add_label, add_labels
from apps.feedback.thumbs.models import ThumbToken
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.bulk.running import run_job
from apps.trajectories.models import Trajectory
from tests.factories.registry import AliasFactory, EngineFactory, TeacherFactory
from tests.fakes.engine import FakeEngine
from tests.fakes.webhook import serve_webhook

pytestmark = pytest.mark.django_db


@pytest.fixture
def version(project: Project, trainer: User) -> GraderVersion:
    draft = VersionDraft(settings={"pattern": "hi", "must_match": False})
    made, _ = create_grader(caller=Caller(user=trainer), project=project, name="no-hi", kind="regex", draft=draft)
    return made


def page_of(version: GraderVersion) -> str:
    return f"/p/shop/graders/{version.grader_id}"


class TestForm:
    @pytest.mark.parametrize("kind", list(KINDS))
    def test_every_kind_has_a_form(self, trainer_browser: Client, project: Project, kind: str) -> None:
        html = trainer_browser.get(f"/p/shop/graders/new?kind={kind}").content.decode()
        assert KINDS[kind].help[:15] in html
        form = GraderForm.of_kind(KINDS[kind])
        draft = GraderForm.of_data(KINDS[kind], form.typed).read_draft()
        assert draft is not None
        assert all(one.kind in {"text", "area", "number", "select", "checkbox"} for one in form.settings)

    def test_it_opens_with_a_simple_rule(self, trainer_browser: Client, project: Project) -> None:
        html = trainer_browser.get("/p/shop/graders/new").text
        assert 'href="?kind=regex" aria-current="true"' in html
        assert html.count('class="field"') < 12

    def test_a_grader_is_made(self, trainer_browser: Client, project: Project) -> None:
        typed = {
            "kind": "regex",
            "name": "polite",
            "settings.pattern": "please",
            "settings.passed": "1",
            "settings.failed": "−0.5",
            "settings.must_match": "on",
            "settings.target": "step",
            "field": "reward",
            "sample": "0.5",
        }
        answer = trainer_browser.post("/p/shop/graders/new", typed)
        made = GraderVersion.objects.get()
        assert answer["Location"] == page_of(made)
        assert (made.settings["failed"], made.settings["target"], made.sample) == (-0.5, "step", 0.5)
        html = trainer_browser.get(page_of(made)).content.decode()
        assert "Not tried yet" in html
        assert "polite" in trainer_browser.get("/p/shop/rewards").content.decode()

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"name": "A B"}, "a name has lower case letters"),
            ({"settings.pattern": "("}, "a ( is never closed, in ("),
            ({"kind": "reasoning_gym", "settings.task": "A B"}, "has lower case letters, digits and _, 60"),
            ({"kind": "reward_model", "settings.model": "../x"}, "is a folder"),
            ({"kind": "judge", "settings.n_votes": "10"}, "it must be 9 or less"),
            ({"settings.passed": "much"}, "a number is needed"),
            ({"query": "reward:good"}, "reward"),
            ({"sample": "all"}, "a number is needed"),
            ({"field": "nothing"}, "no field"),
        ],
    )
    def test_an_error_stands_at_its_field(
        self, trainer_browser: Client, project: Project, change: dict[str, str], reason: str
    ) -> None:
        typed = {"kind": "regex", "name": "x", "settings.pattern": "y", "settings.target": "step", "field": "reward"}
        answer = trainer_browser.post("/p/shop/graders/new", {**typed, **change})
        html = answer.content.decode()
        assert (answer.status_code, reason in html) == (400, True)
        assert not Grader.objects.exists()

    def test_all_errors_stand_at_their_boxes_at_once(self, trainer_browser: Client, project: Project) -> None:
        typed = {"kind": "regex", "name": "A B", "settings.pattern": "(", "settings.passed": "much"}
        typed |= {"settings.failed": "-1", "settings.target": "step", "field": "reward", "query": "reward:good"}
        answer = trainer_browser.post("/p/shop/graders/new", {**typed, "sample": "all"})
        html = unescape(answer.content.decode())
        reasons = {
            "name": "a name has lower case letters",
            "settings.pattern": "RE2 does not take",
            "settings.passed": "a number is needed",
            "query": "reward wants a number",
            "sample": "a number is needed",
        }
        for box, reason in reasons.items():
            at_box = html[html.index(f' name="{box}"') :]
            assert reason in at_box[: at_box.index("</div>\n")], box
        assert (answer.status_code, html.count('role="alert"')) == (400, 5)
        again = trainer_browser.post("/p/shop/graders/new", {**typed, "name": "polite", "settings.passed": "1"})
        assert again.content.decode().count('role="alert"') == 2

    def test_votes_that_would_all_be_one_are_told_at_their_box(self, trainer_browser: Client, project: Project) -> None:
        typed = {**GraderForm.of_kind(KINDS["judge"]).typed, "kind": "judge", "name": "polite", "settings.n_votes": "3"}
        html = trainer_browser.post("/p/shop/graders/new", typed).content.decode()
        at_box = html[html.index(' name="settings.n_votes"') :]
        assert "are one vote: raise the temperature" in at_box[: at_box.index("</div>")]

    def test_lines_end_as_answers_do(self, trainer_browser: Client, project: Project) -> None:
        form = {"kind": "exact", "name": "haiku", "settings.expected": "one\r\ntwo", "settings.passed": "0.1234567"}
        form |= {"settings.failed": "-1", "field": "reward", "sample": "1"}
        assert trainer_browser.post("/p/shop/graders/new", form).status_code == 302
        settings = GraderVersion.objects.get().settings
        assert (settings["expected"], settings["passed"]) == ("one\ntwo", 0.1234567)
        again = trainer_browser.get(f"/p/shop/graders/{Grader.objects.get().pk}/versions")
        assert 'value="0.1234567"' in again.content.decode()

    def test_bad_json_is_told(self, trainer_browser: Client, project: Project) -> None:
        typed = {"kind": "json_schema", "name": "x", "settings.json_schema": "{", "settings.target": "step"}
        answer = trainer_browser.post("/p/shop/graders/new", typed)
        assert (answer.status_code, "this is no JSON: look at line 1, character 2" in answer.text) == (400, True)

    def test_what_is_no_json_schema_is_told_by_its_place(self, trainer_browser: Client, project: Project) -> None:
        typed = {"kind": "json_schema", "name": "x", "settings.target": "step"}
        typed["settings.json_schema"] = '{"properties": {"a": {"minimum": "x"}}}'
        html = unescape(trainer_browser.post("/p/shop/graders/new", typed).text)
        assert 'at properties → a → minimum stands "x", where a number belongs' in html

    def test_a_webhooks_secret_is_shown_once(
        self, trainer_browser: Client, project: Project, settings: Settings
    ) -> None:
        settings.CLAW = settings.CLAW.model_copy(update={"webhook_hosts": ("127.0.0.1",)})
        with serve_webhook() as webhook:
            typed = {"kind": "webhook", "name": "hook", "settings.url": webhook.url, "settings.target": "step"}
            made = trainer_browser.post("/p/shop/graders/new", {**typed, "field": "reward"})
        address = page_of(GraderVersion.objects.get())
        assert (made.status_code, made.headers["Location"]) == (302, f"{address}/secret")
        for _ in range(2):  # the first secret, and one that is made anew
            assert "clawhook-" not in trainer_browser.get(address).content.decode()  # as other tabs do
            shown = trainer_browser.get(f"{address}/secret")
            assert "clawhook-" in shown.content.decode()
            assert shown.headers["Cache-Control"] == "no-store"
            assert "clawhook-" not in trainer_browser.get(f"{address}/secret").content.decode()
            assert trainer_browser.post(f"{address}/secret").headers["Location"] == f"{address}/secret"

    def test_a_judge_is_chosen_among_the_models_that_there_are(self, trainer_browser: Client, project: Project) -> None:
        TeacherFactory.create(project=project, name="big-teacher")
        TeacherFactory.create(name="another-projects")
        html = trainer_browser.get("/p/shop/graders/new?kind=judge").content.decode()
        assert 'value="live" list="models"' in html
        assert '<option value="live"></option><option value="big-teacher"></option></datalist>' in html
        assert "<datalist" not in trainer_browser.get("/p/shop/graders/new?kind=reward_model").content.decode()


class TestGrader:
    def test_without_a_word_of_people_no_agreement_is_claimed(
        self, trainer_browser: Client, version: GraderVersion, trajectory: Trajectory
    ) -> None:
        trainer_browser.post(f"{page_of(version)}/1/dry-run", {"n": "5"})
        run_dry_run(DryRun.objects.get().pk)
        html = trainer_browser.get(page_of(version)).content.decode()
        assert "People judged none of these" in html
        assert "have the same sign" not in html

    def test_a_dry_run_shows_what_people_said_beside_its_worth(
        self, trainer_browser: Client, project: Project, trainer: User, mate: User, trajectory: Trajectory
    ) -> None:
        author = Caller(user=trainer)
        stars = {"name": "stars", "kind": "scale", "low": 1, "high": 5}
        add_schema(caller=author, project=project, definition={"fields": [stars]})
        for user, value in ((mate, 4), (trainer, 5)):
            add_labels(caller=Caller(user=user), trajectory=trajectory, answers=[Answer(field="stars", value=value)])
        draft = VersionDraft(settings={"pattern": "zebra", "passed": 5, "failed": 2}, field="stars")
        rated, _ = create_grader(caller=author, project=project, name="rated", kind="regex", draft=draft)
        trainer_browser.post(f"{page_of(rated)}/1/dry-run", {"n": "5"})
        run_dry_run(DryRun.objects.get().pk)
        table = trainer_browser.get(page_of(rated)).text.split('id="dry-run"')[1].split("</table>")[0]
        words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", table))
        assert "2 worth −0.50 4, 5 worth +0.75" in words

    def test_a_budget_is_shown_with_what_is_spent_of_it(
        self, trainer_browser: Client, version: GraderVersion, trajectory: Trajectory
    ) -> None:
        assert "Calls today" not in trainer_browser.get(page_of(version)).content.decode()
        asking = {**KINDS["judge"].settings().model_dump(), "calls_per_day": 2}
        judge = GraderVersion.objects.create(
            grader=Grader.objects.create(project=version.grader.project, name="judge", kind="judge"),
            number=1,
            settings=asking,
        )
        Grading.objects.create(version=judge, trajectory=trajectory)
        for n_calls, words in ((1, "1 wait to be graded."), (2, "1 wait to be graded, until the next day begins")):
            DailyCalls.objects.update_or_create(
                grader=judge.grader, day=timezone.now().astimezone(UTC).date(), defaults={"n_calls": n_calls}
            )
            html = trainer_browser.get(page_of(judge)).content.decode()
            assert f"Calls today: <strong>{n_calls}</strong> of 2" in html
            assert words in html

    def test_from_a_dry_run_to_a_backfill(
        self, trainer_browser: Client, mate: User, version: GraderVersion, trajectory: Trajectory
    ) -> None:
        address = page_of(version)
        assert trainer_browser.post(f"{address}/1/on").status_code == 409
        add_label(caller=Caller(user=mate), trajectory=trajectory, value=-1)
        assert trainer_browser.post(f"{address}/1/dry-run", {"n": "5"})["Location"] == f"{address}?version=1"
        run_dry_run(DryRun.objects.get().pk)
        html = trainer_browser.get(address).content.decode()
        assert "no-hi@v1 is tried on up to 5 trajectories" in html
        assert "<strong>1</strong> have the same sign" in html
        assert 'id="grader-actions" data-live' in html  # the page in front of somebody learns that it is tried
        assert "Try it first" not in html
        assert trainer_browser.post(f"{address}/1/on").status_code == 302
        assert "v1 is on" in trainer_browser.get("/p/shop/rewards").content.decode()
        html = trainer_browser.post(f"{address}/1/backfill", {"query": "agent:clrk"}, follow=True).content.decode()
        assert "This project has no agent clrk: do you mean clerk?" in html
        Backfill.objects.all().delete()
        trainer_browser.post(f"{address}/1/backfill", {"query": ""})
        fill_backfill(Backfill.objects.get().pk)
        while grade_due(version.pk):
            pass
        html = trainer_browser.get(address).content.decode()
        assert "<strong>1</strong> of 1 looked at" in html
        assert "Judged by both" in html
        assert Label.objects.filter(grader=version).count() == 1
        page = trainer_browser.get(f"/p/shop/trajectories/{trajectory.pk}").content.decode()
        assert "does not count" in page  # the person's word outranks the rule's, and the page says so
        assert f"{address}?version=1" in page
        assert trainer_browser.post(f"/p/shop/backfills/{Backfill.objects.get().pk}/cancel").status_code == 302
        trainer_browser.post(f"{address}/off")
        assert Grader.objects.get().live is None

    def test_a_backfill_is_asked_for_with_the_number_it_would_grade(
        self, trainer_browser: Client, version: GraderVersion, trajectory: Trajectory
    ) -> None:
        address = page_of(version)
        assert 'name="unasked" value="1"' in trainer_browser.get(address).text
        for n, words in ((1, "Have no-hi@v1 grade 1 trajectory?"), (0, "Nothing that is found now is left to grade.")):
            asked = trainer_browser.post(f"{address}/1/backfill", {"query": "", "unasked": "1"})
            assert words in asked.text, n
            line_up(version, [trajectory.pk])
            grade_due(version.pk)
        assert not Backfill.objects.exists()

    def test_a_dry_run_shows_the_rewards_of_now(
        self, trainer_browser: Client, mate: User, version: GraderVersion, trajectory: Trajectory
    ) -> None:
        DryRun.objects.create(version=version, n_wanted=1)
        run_dry_run(DryRun.objects.get().pk)
        add_label(caller=Caller(user=mate), trajectory=trajectory, value=0.25)
        assert "+0.25" in trainer_browser.get(page_of(version)).text.split("<tbody>")[1].split("</tbody>")[0]

    def test_one_is_archived_and_restored(self, trainer_browser: Client, version: GraderVersion) -> None:
        address = page_of(version)
        assert trainer_browser.post(f"{address}/archive")["Location"] == address
        html = trainer_browser.get(address).content.decode()
        assert ">archived</span>" in html
        assert ">Restore</button>" in html
        assert f"{address}/1/on" not in html
        assert f"{address}/1/dry-run" not in html
        assert f"{address}/1/backfill" not in html
        assert ">archived</span>" in trainer_browser.get("/p/shop/rewards").content.decode()
        assert trainer_browser.post(f"{address}/1/on").status_code == 409
        trainer_browser.post(f"{address}/restore")
        assert f"{address}/1/on" in trainer_browser.get(address).content.decode()

    def test_what_it_said_is_taken_back(
        self, trainer_browser: Client, reviewer_browser: Client, version: GraderVersion, trajectory: Trajectory
    ) -> None:
        address, button = page_of(version), ">Take back what it said</button>"
        assert button not in trainer_browser.get(address).text
        assert trainer_browser.post(f"{address}/take-back").status_code == 409
        line_up(version, [trajectory.pk])
        grade_due(version.pk)
        html = trainer_browser.get(address).text
        assert button in html
        assert "Take back what no-hi said of 1 trajectory, in all its versions?" in html
        assert button not in reviewer_browser.get(address).text
        begun = trainer_browser.post(f"{address}/take-back")
        job = BulkJob.objects.get()
        assert begun["Location"] == f"/p/shop/jobs/{job.pk}"
        run_job(job.pk, actions=ACTIONS)
        assert "<h1>Take back what the grader “no-hi” said of" in trainer_browser.get(begun["Location"]).text
        assert button not in trainer_browser.get(address).text

    def test_a_new_version_starts_from_the_newest(self, trainer_browser: Client, version: GraderVersion) -> None:
        address = f"{page_of(version)}/versions"
        html = trainer_browser.get(address).content.decode()
        assert ">hi</textarea>" in html
        typed = {"settings.pattern": "bye", "settings.target": "trajectory", "field": "reward", "sample": "1"}
        assert trainer_browser.post(address, typed)["Location"] == page_of(version)
        assert "version 2" in trainer_browser.get(page_of(version)).content.decode()
        assert "version 1" in trainer_browser.get(f"{page_of(version)}?version=1").content.decode()
        assert trainer_browser.post(address, {**typed, "settings.pattern": "("}).status_code == 400

    def test_who_may(
        self,
        viewer_browser: Client,
        reviewer_browser: Client,
        browser_of: Callable[[User], Client],
        stranger: User,
        version: GraderVersion,
        owner: User,
    ) -> None:
        address = page_of(version)
        assert "Ask owner@example.org" in viewer_browser.get(address).content.decode()
        for act in (
            "/1/on",
            "/1/dry-run",
            "/1/backfill",
            "/off",
            "/archive",
            "/restore",
            "/take-back",
            "/secret",
            "/versions",
        ):
            assert reviewer_browser.post(f"{address}{act}").status_code == 403
            assert browser_of(stranger).post(f"{address}{act}").status_code == 404
            assert browser_of(stranger).get(f"{address}{act}").status_code in (404, 405)
            if act not in ("/versions", "/secret"):
                assert reviewer_browser.get(f"{address}{act}").status_code == 405
        assert viewer_browser.put(f"{address}/secret").status_code == 405
        assert viewer_browser.get(f"/p/shop/graders/{new_id('grdr')}").status_code == 404
        assert viewer_browser.get(f"{address}?version=9").status_code == 404
        assert viewer_browser.get(f"/x/{version.grader_id}")["Location"] == address

    def test_bad_counts_are_refused(self, trainer_browser: Client, version: GraderVersion) -> None:
        for n in ("0", "51", "x", "9" * 9):
            assert trainer_browser.post(f"{page_of(version)}/1/dry-run", {"n": n}).status_code == 400
        assert not DryRun.objects.exists()


class TestNonsense:
    """A judge that answers in any shape, on a small model."""

    @pytest.fixture
    def judge(self, project: Project, trainer: User) -> GraderVersion:
        draft = VersionDraft(settings={"hold_to_shape": False, "question": "Is it polite?"})
        made, _ = create_grader(caller=Caller(user=trainer), project=project, name="kind", kind="judge", draft=draft)
        return made

    @pytest.fixture
    def engine(self, project: Project) -> Iterator[FakeEngine]:
        with FakeEngine() as fake:
            AliasFactory.create(version__policy__project=project)
            EngineFactory.create(base_url=fake.url)
            yield fake

    def test_the_page_says_how_often_and_holds_it_to_the_shape_at_a_click(
        self, trainer_browser: Client, viewer_browser: Client, judge: GraderVersion, engine: FakeEngine, trajectory: Any
    ) -> None:
        address = page_of(judge)
        assert "made no sense" not in trainer_browser.get(address).content.decode()
        engine.script.pieces = ["I would say ", "it is fine"]
        trainer_browser.post(f"{address}/1/dry-run", {"n": "5"})
        run_dry_run(DryRun.objects.get().pk)
        html = trainer_browser.get(address).content.decode()
        assert "1 of 1 answers of the dry run made no sense:" in html
        assert "Hold it to the shape: make and try version 2" in html
        seen = viewer_browser.get(address).content.decode()
        assert ("made no sense" in seen, "make and try" in seen) == (True, False)
        answer = trainer_browser.post(f"{address}/1/hold")
        assert answer["Location"] == f"{address}?version=2"
        held = GraderVersion.objects.get(number=2)
        assert held.settings == {**judge.settings, "hold_to_shape": True}
        engine.script.pieces = ['{"score": 1, "reason": "polite", "hint": ""}']
        run_dry_run(DryRun.objects.get(version=held).pk)
        html = trainer_browser.get(answer["Location"]).content.decode()
        assert ("made no sense" in html, "+1.00" in html) == (False, True)
        assert "response_format" in engine.calls[-1].body
        assert (
            'href="?version=2">Version 2</a> is newer' in trainer_browser.get(f"{address}?version=1").content.decode()
        )
        assert trainer_browser.post(f"{address}/2/hold").status_code == 409

    def test_it_counts_what_was_graded_too(
        self, trainer_browser: Client, judge: GraderVersion, engine: FakeEngine, trajectory: Trajectory
    ) -> None:
        engine.script.pieces = ["fine"]
        line_up(judge, [trajectory.pk])
        grade_due(judge.pk)
        assert "1 of what it graded made no sense:" in trainer_browser.get(page_of(judge)).content.decode()

    def test_a_model_that_is_held_already_is_not_held_again(
        self, trainer_browser: Client, project: Project, trainer: User, engine: FakeEngine, trajectory: Trajectory
    ) -> None:
        caller = Caller(user=trainer)
        held, _ = create_grader(caller=caller, project=project, name="held", kind="judge", draft=VersionDraft())
        engine.script.pieces = ["fine"]
        line_up(held, [trajectory.pk])
        grade_due(held.pk)
        html = trainer_browser.get(page_of(held)).content.decode()
        assert ("does not know <code>response_format" in html, "make and try" in html) == (True, False)

    def test_who_may(
        self, reviewer_browser: Client, browser_of: Callable[[User], Client], stranger: User, judge: GraderVersion
    ) -> None:
        address = f"{page_of(judge)}/1/hold"
        assert reviewer_browser.post(address).status_code == 403
        assert reviewer_browser.get(address).status_code == 405
        assert browser_of(stranger).post(address).status_code == 404


class TestTokens:
    def test_a_token_is_made_and_switched_off(self, trainer_browser: Client, agent: Agent) -> None:
        typed = {"agent": agent.slug, "name": "shop", "origins": "https://a.example https://b.example"}
        assert trainer_browser.post("/p/shop/rewards/tokens", typed)["Location"] == "/p/shop/rewards"
        token = ThumbToken.objects.get()
        assert token.origins == ["https://a.example", "https://b.example"]
        html = trainer_browser.get("/p/shop/rewards").content.decode()
        assert token.token in html
        trainer_browser.post(f"/p/shop/rewards/tokens/{token.pk}/off")
        token.refresh_from_db()
        assert token.disabled_at is not None

    def test_a_bad_origin_is_told(self, trainer_browser: Client, agent: Agent) -> None:
        answer = trainer_browser.post("/p/shop/rewards/tokens", {"agent": agent.slug, "origins": "shop"})
        assert (answer.status_code, "no origin: write https://" in answer.content.decode()) == (400, True)
        assert trainer_browser.post("/p/shop/rewards/tokens", {"agent": "nobody"}).status_code == 404

    def test_reviewers_make_none(self, reviewer_browser: Client, agent: Agent) -> None:
        assert reviewer_browser.post("/p/shop/rewards/tokens", {"agent": agent.slug}).status_code == 403
