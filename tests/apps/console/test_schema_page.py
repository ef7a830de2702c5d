"""The score schema's page: what is typed, what is wrong with it, what reviewers would see."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.accounts.models import Project, User
from apps.console.schema_form import SchemaForm
from apps.feedback.models import ScoreSchema
from apps.feedback.schemas import find_schema
from apps.feedback.score_schema import DEFAULT, FieldKind, read_schema

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[3]

STARS = {"name": "stars", "kind": "scale", "low": 1, "high": 5, "weight": 2, "title": "How clear?"}
MOOD = {
    "name": "mood",
    "kind": "choice",
    "help": "As a stranger would hear it.",
    "choices": [{"name": "good", "title": "Well said", "reward": 1}, {"name": "odd"}],
}
COST = {"name": "cost", "kind": "number", "low": 0, "high": 1234567.25, "low_reward": 1, "high_reward": -0.1234567}
HINT = {"name": "hint", "kind": "text", "many": True, "weight": 0, "title": "What it should have known"}


class TestSchema:
    def test_an_empty_project_shows_the_default(self, viewer_browser: Client, project: Project) -> None:
        html = viewer_browser.get("/p/shop/rewards").content.decode()
        assert "as it comes" in html
        assert "No grader yet" in html
        assert "human, else end user, else environment" in html

    def test_what_is_typed_is_in_force(self, trainer_browser: Client, project: Project) -> None:
        typed = {
            "0.name": "reward",
            "0.kind": "number",
            "0.low": "-1",
            "0.high": "1",
            "0.weight": "0,5",
            "1.name": "mood",
            "1.kind": "choice",
            "1.choices": "good = 1\nbad = −1\nodd",
            "2.name": "",
            "2.kind": "binary",
            "trust": "human 1, judge 0.3\nrule",
            "note": "moods",
        }
        answer = trainer_browser.post("/p/shop/rewards/schema", typed)
        assert answer["Location"] == "/p/shop/rewards"
        schema = find_schema(project.pk).fields
        assert schema.trust == ({"human": 1, "judge": 0.3}, {"rule": 1})
        assert schema.find_field("reward").weight == 0.5
        assert [choice.reward for choice in schema.find_field("mood").choices] == [1, -1, None]
        html = trainer_browser.get("/p/shop/rewards").content.decode()
        assert 'Rewards are computed anew. <a href="/p/shop/jobs/job_' in html
        assert "moods" in html
        assert "judge \N{MULTIPLICATION SIGN} 0.3" in html

    @pytest.mark.parametrize("schema", [DEFAULT, read_schema({"fields": [STARS, MOOD, COST, HINT]})])
    def test_what_the_form_shows_is_what_it_reads_and_the_rest_stays(self, schema: Any) -> None:
        form = SchemaForm.of_schema(schema)
        data = {f"{row.number}.{name}": value for row in form.rows for name, value in row.cells.items()}
        definition = SchemaForm.of_data({**data, "trust": form.trust}).read_definition(schema)
        assert definition is not None
        assert read_schema(definition) == schema

    def test_boxes_of_other_kinds_are_hidden_and_not_meant(self, trainer_browser: Client, project: Project) -> None:
        row = {"name": "polite", "kind": "binary", "low": "1", "high": "x", "choices": "a = 9", "many": "on"}
        typed = {f"0.{name}": text for name, text in row.items()}
        assert trainer_browser.post("/p/shop/rewards/schema", {**typed, "trust": "human 1"}).status_code == 302
        made = find_schema(project.pk).fields.find_field("polite")
        assert (made.kind, made.low, made.choices, made.many) == ("binary", None, (), False)
        html = trainer_browser.get("/p/shop/rewards/schema").content.decode()
        assert re.search(r'<div class="field" data-kinds="scale number">\s*<label for="f-1.low">From', html)

    @pytest.mark.parametrize("kind", list(FieldKind))
    def test_the_page_hides_what_a_kind_has_no_use_for(self, kind: FieldKind) -> None:
        rules = (ROOT / "static/css/rewards.css").read_text()
        assert f'.by-kind:has(option[value="{kind}"]:checked) [data-kinds]:not([data-kinds~="{kind}"])' in rules

    @pytest.mark.parametrize(
        ("typed", "box", "reason"),
        [
            ({"0.name": "x", "0.kind": "scale"}, "0.low", "A scale needs low and high"),
            ({"0.name": "x", "0.kind": "scale", "0.low": "9", "0.high": "1"}, "0.high", "low lies below high"),
            ({"0.name": "x", "0.kind": "scale", "0.low": "1", "0.high": "1,5"}, "0.high", "has whole steps"),
            ({"0.name": "x", "0.kind": "binary", "0.weight": "much"}, "0.weight", "is no number"),
            ({"0.name": "x", "0.kind": "binary", "0.low_reward": "-2"}, "0.low_reward", "It must be -1 or more"),
            ({"0.name": "x", "0.kind": "choice", "0.choices": "facts 1"}, "0.choices", "written as name = worth"),
            ({"0.name": "x", "0.kind": "choice"}, "0.choices", "Choices are for a choice, which needs at least one"),
            ({"0.name": "x", "0.kind": "choice", "0.choices": "a\nb = 3"}, "0.choices", "Line 2: it must be 1 or less"),
            ({"0.name": "x", "0.kind": "choice", "0.choices": "a\na"}, "0.choices", "Two choices have one name"),
            ({"0.name": "X", "0.kind": "binary"}, "0.name", "A name has lower case letters, digits and _"),
            ({"0.name": "x", "0.kind": "mood"}, "0.kind", "It must be 'binary', 'scale'"),
            ({"4.name": "", "7.name": "a", "7.kind": "text", "8.name": "a", "8.kind": "text"}, "8.name", "one name, a"),
            ({"0.name": "reward", "0.kind": "text", "0.title": "R"}, "0.title", "Reward is built in"),
            ({"trust": "oracle 1"}, "trust", "no source"),
            ({"trust": "human much"}, "trust", "is no number"),
            ({"note": "x" * 401}, "note", "A note has 400 characters"),
        ],
    )
    def test_what_makes_no_sense_is_told_beside_its_box_and_kept(
        self, trainer_browser: Client, project: Project, typed: dict[str, str], box: str, reason: str
    ) -> None:
        answer = trainer_browser.post("/p/shop/rewards/schema", {"trust": "human 1", **typed})
        html = answer.content.decode()
        assert (answer.status_code, html.count('role="alert"')) == (400, 1)
        at_box = html[html.index(f' name="{box}"') :]
        shown = at_box[: at_box.index("</div>")]
        assert 'aria-invalid="true"' in shown
        assert reason in unescape(shown)
        assert next(iter(typed.values())) in html
        assert not ScoreSchema.objects.exists()

    def test_an_empty_body_drops_no_field(self, trainer_browser: Client, project: Project) -> None:
        reward = {"0.name": "reward", "0.kind": "number", "0.low": "-1", "0.high": "1"}
        mine = {"1.name": "mood", "1.kind": "binary", "trust": "human 1"}
        assert trainer_browser.post("/p/shop/rewards/schema", {**reward, **mine}).status_code == 302
        answer = trainer_browser.post("/p/shop/rewards/schema", {})
        html = answer.content.decode()
        assert (answer.status_code, "did not arrive whole, and nothing was changed" in html) == (400, True)
        assert 'value="mood"' in html
        assert ScoreSchema.objects.count() == 1

    def test_all_that_is_wrong_is_told_at_once(self, trainer_browser: Client, project: Project) -> None:
        typed = {
            "0.name": "x",
            "0.kind": "scale",
            "0.weight": "w",
            "1.name": "Y",
            "1.kind": "choice",
            "trust": "nobody",
        }
        html = trainer_browser.post("/p/shop/rewards/schema", typed).content.decode()
        assert html.count('role="alert"') == 4  # x: weight, from; Y: name; tiers

    def test_as_many_fields_as_wanted_are_added_before_any_is_saved(
        self, trainer_browser: Client, project: Project
    ) -> None:
        reward = {"0.name": "reward", "0.kind": "number", "0.low": "-1", "0.high": "1"}
        typed = {**reward, "1.name": "half", "1.kind": "scale", "trust": "human"}
        for number in (2, 3, 4):
            html = trainer_browser.post("/p/shop/rewards/schema", {**typed, "add": "1"}).content.decode()
            assert (f'id="field-{number}"' in html, 'value="half"' in html, 'role="alert"' in html) == (
                True,
                True,
                False,
            )
            assert f'formaction="/p/shop/rewards/schema#field-{number + 1}"' in html
            typed |= {f"{number}.name": f"f{number}", f"{number}.kind": "binary"}
        assert not ScoreSchema.objects.exists()
        typed["1.kind"] = "binary"
        assert trainer_browser.post("/p/shop/rewards/schema", typed).status_code == 302
        assert [spec.name for spec in find_schema(project.pk).fields.fields][:5] == ["reward", "half", "f2", "f3", "f4"]

    def test_what_a_reviewer_will_see_is_shown_before_it_is_saved(
        self, trainer_browser: Client, project: Project
    ) -> None:
        mood = {"1.name": "mood", "1.kind": "choice", "1.choices": "kind = 1\ncurt = -1\nodd", "1.title": "How is it?"}
        half = {"2.name": "half", "2.kind": "scale", "3.name": "places", "3.kind": "ranking"}
        typed = {"0.name": "reward", "0.kind": "number", "trust": "human", **mood, **half, "show": "1"}
        answer = trainer_browser.post("/p/shop/rewards/schema", {**typed, "0.low": "-1", "0.high": "1"})
        html = answer.content.decode()
        preview = html[html.index('id="preview"') :]
        assert re.findall(r'data-box="(\w+)"', preview) == ["reward", "mood", "comment", "hint"]
        assert re.findall(r"is worth </span>([^<]+)<", preview[preview.index("How is it?") :]) == ["+1.00", "−1.00"]
        assert (answer.status_code, ScoreSchema.objects.exists()) == (200, False)
        assert "needs low and high" in html[: html.index('id="preview"')]

    def test_reviewers_are_told_whom_to_ask(self, reviewer_browser: Client, owner: User, project: Project) -> None:
        assert "Ask owner@example.org" in reviewer_browser.get("/p/shop/rewards/schema").content.decode()
        assert reviewer_browser.post("/p/shop/rewards/schema", {}).status_code == 403
