"""The endpoint that is asked for the next attempt: a server of the test's own."""

import json

import pytest

from minisandbox_ray.errors import ModelServiceError
from minisandbox_ray.tasks.automatic.advisor import advise
from minisandbox_ray.tasks.automatic.plans import Plan

from .conftest import Endpoint

PLAN = Plan(python="3.9.18", requirements=["pytest"], targets=["tests"])


def ask(endpoint: Endpoint) -> Plan:
    return advise(endpoint.config, PLAN, "it fails", "the log", {"name": "demo"}, ["3.9.18"])


def test_its_answer_changes_the_plan(endpoint: Endpoint) -> None:
    endpoint.content = 'Try this:\n```json\n{"why": "old", "requirements": ["pytest<7", "six"], "python": "3.8"}\n```'
    plan = ask(endpoint)
    assert (plan.python, plan.requirements, plan.targets) == ("3.8", ["pytest<7", "six"], ["tests"])
    assert plan.learned == ["old"]
    assert endpoint.keys == ["Bearer hidden"]
    told = endpoint.asked[0]["messages"][1]["content"]
    assert "it fails" in told and "the log" in told and "hidden" not in json.dumps(endpoint.asked)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("I can't help", "proposes no plan"),
        ('{"requirements": "pytest"}', "requirements"),
        ('{"sudo": true}', "sudo"),
        ('{"requirements": ["git+https://example.org/x"]}', "none that an index has"),
        ('{"targets": ["/etc"]}', "not in the source tree"),
        ('{"python": "2.7"}', "python"),
    ],
)
def test_what_is_no_change_of_a_plan_is_refused(endpoint: Endpoint, content: str, said: str) -> None:
    endpoint.content = content
    with pytest.raises(ModelServiceError, match=said):
        ask(endpoint)


def test_an_endpoint_that_fails_is_named(endpoint: Endpoint) -> None:
    endpoint.status = 500
    with pytest.raises(ModelServiceError, match="status 500"):
        ask(endpoint)
    dead = endpoint.config.model_copy(update={"base_url": "http://127.0.0.1:9/v1"})
    with pytest.raises(ModelServiceError, match="does not answer"):
        advise(dead, PLAN, "", "", {}, [])
