"""The list's search box and its selects tell the same search, whichever of them it was said by."""

from collections.abc import Callable
from html import unescape

import pytest
from django.http import QueryDict
from django.test import Client

from apps.accounts.models import Agent
from apps.console.queries.filters import AS_SEARCHED, read_filters
from apps.core.errors import InvalidInput
from apps.trajectories.models import Trajectory
from tests.apps.console.test_trajectory_list import titles

LIST = "/p/shop/trajectories"


def settle(**given: str) -> tuple[str, dict[str, str]]:
    """Return what stands in the box, and in the selects that do not say all."""
    address = QueryDict(mutable=True)
    address.update(given)
    filters = read_filters(address)
    shown = filters.showing(filters.read_query())
    return shown.q, {name: value for name, value in shown.selects.items() if value}


@pytest.mark.parametrize(
    ("q", "selects"),
    [
        ("", {}),
        ("refund", {}),
        ("is:open", {"state": "open"}),
        ("is:complete  agent:clerk", {"state": "complete", "agent": "clerk"}),
        ("is:excluded", {}),
        ("is:open is:excluded", {"state": "open"}),
        ("is:open,excluded", {"state": AS_SEARCHED}),
        ("is:open is:complete", {"state": AS_SEARCHED}),
        ("-is:open", {"state": AS_SEARCHED}),
        ("agent:clerk,shop", {"agent": AS_SEARCHED}),
        ("-agent:clerk", {"agent": AS_SEARCHED}),
        ("channel:val", {"channel": "val"}),
        ("reward:any", {"rewarded": "yes"}),
        ("has:reward", {"rewarded": "yes"}),
        ("-reward:none", {"rewarded": "yes"}),
        ("reward:none", {"rewarded": "no"}),
        ("-has:reward", {"rewarded": "no"}),
        ("reward>0", {"rewarded": "good"}),
        ("reward<0", {"rewarded": "bad"}),
        ("reward>0.3", {"rewarded": AS_SEARCHED}),
        ("reward>0 reward<0.5", {"rewarded": AS_SEARCHED}),
        ("has:error,reward", {"rewarded": AS_SEARCHED}),
        ("has:error", {}),
    ],
)
def test_the_selects_tell_what_the_box_says(q: str, selects: dict[str, str]) -> None:
    assert settle(q=q) == (q, selects)
    assert settle(q=q, was=q, **selects) == (q, selects)  # sent again as it stands


@pytest.mark.parametrize(
    ("given", "q"),
    [
        ({"state": "open", "rewarded": "no"}, "is:open reward:none"),
        ({"q": "refund", "agent": "clerk"}, "refund agent:clerk"),
        ({"q": "is:open", "state": "complete"}, "is:open is:complete"),  # an address: all of it must hold
        ({"q": "is:open", "state": "complete", "was": "is:open"}, "is:complete"),
        ({"q": "is:open", "state": "", "was": "is:open"}, ""),
        ({"q": "is:open", "was": "is:open"}, ""),  # as scripts send an empty select
        ({"q": "is:complete", "state": "open", "was": "is:open"}, "is:complete"),  # typed
        ({"q": "", "state": "open", "was": "is:open"}, ""),
        ({"q": "is:complete x", "state": "", "was": "is:open"}, "x"),  # both: the select was chosen last, or by mistake
        ({"q": "reward<0.3 x", "rewarded": "*", "was": "reward<0.3 x"}, "reward<0.3 x"),
        ({"q": "reward<0.3 x", "rewarded": "good", "was": "reward<0.3 x"}, "x reward>0"),
        ({"q": "has:reward is:excluded", "rewarded": "no", "was": "has:reward is:excluded"}, "is:excluded reward:none"),
        ({"q": "x", "state": "open", "was": "no:such"}, "x is:open"),
        ({"q": "x", "rewarded": "*"}, "x"),
    ],
)
def test_the_box_tells_what_the_selects_say(given: dict[str, str], q: str) -> None:
    said, selects = settle(**given)
    assert said == q
    assert settle(q=said)[1] == selects


@pytest.mark.parametrize("given", [{"state": "asleep"}, {"rewarded": "some"}, {"channel": "x"}, {"agent": "\x00"}])
def test_odd_choices_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        settle(**given)


def chosen(html: str) -> dict[str, str]:
    """Return the words that each select shows."""
    parts = {
        name: html.split(f'id="f-{name}">')[1].split("</select>", maxsplit=1)[0]
        for name in ("state", "agent", "rewarded")
    }
    return {name: part.split(" selected>")[1].split("<")[0] for name, part in parts.items() if " selected" in part}


def test_the_form_leads_to_one_address_that_says_it_all(
    owner_browser: Client, agent: Agent, add_trajectory: Callable[..., Trajectory]
) -> None:
    add_trajectory(title="asleep", state="open", completed_at=None)
    add_trajectory(title="awake")
    html = owner_browser.get(LIST, {"q": "is:open"}).content.decode()
    assert chosen(html) == {"state": "open"}
    sent = {"was": "is:open", "q": "is:open", "state": "complete", "agent": agent.slug}
    answer = owner_browser.get(LIST, sent)
    assert (answer.status_code, answer["Location"]) == (302, f"{LIST}?q=agent%3Aclerk+is%3Acomplete")
    html = owner_browser.get(answer["Location"]).content.decode()
    assert chosen(html) == {"state": "complete", "agent": agent.name}
    assert titles(html, "asleep", "awake") == {"awake"}
    assert 'name="was" value="agent:clerk is:complete"' in html
    linked = owner_browser.get(LIST, {"state": "open"}).content.decode()
    assert 'id="f-q" value="is:open"' in linked
    assert owner_browser.get(LIST, {"was": "is:open", "q": "is:open"})["Location"] == LIST
    odd = owner_browser.get(LIST, {"q": "reward<0.3 agent:clrk"}).content.decode()
    assert chosen(odd) == {"agent": "clrk", "rewarded": "as searched"}


def test_a_search_that_cannot_be_read_stands_there_with_what_was_chosen(owner_browser: Client, agent: Agent) -> None:
    answer = owner_browser.get(LIST, {"was": "is:open x", "q": "is:open x reward<<", "state": "complete"})
    html = unescape(answer.content.decode())
    assert answer.status_code == 400
    assert chosen(html) == {"state": "complete"}
    assert ('value="is:open x reward<<"' in html, 'name="was" value="is:open x"' in html) == (True, True)
