"""Automations of Prefect that notify people of what went wrong in the runs of a deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events import AutomationCore
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from ...errors import InputError, printable

_NO_SUCCESS_FOR = timedelta(hours=26)
"""A day, and two hours for a night that takes longer than the one before."""

_ANY_RUN = {"prefect.resource.id": "prefect.flow-run.*"}


@dataclass(frozen=True)
class _Alert:
    """When to notify, by events, and what to say. `resource` is what an event is about; None for runs."""

    what: str
    expect: frozenset[str]
    body: str
    resource: Mapping[str, str] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def apply_alerts(client: SyncPrefectClient, deployment: DeploymentResponse, zoo: str, block: str) -> tuple[str, ...]:
    """Creates or updates the alerts of a deployment, which a notification block sends; returns their names.

    Raises InputError if `block` is not ``TYPE/NAME`` of a block on the server.
    """
    sender = _block(client, block)
    names = []
    for alert in _alerts(zoo):
        automation = _automation(alert, deployment, sender)
        if known := client.read_automations_by_name(automation.name):
            client.update_automation(known[0].id, automation)
        else:
            client.create_automation(automation)
        names.append(automation.name)
    return tuple(names)


def _alerts(zoo: str) -> Iterator[_Alert]:
    run = "{{ flow_run.name }}: {{ flow_run.state.message }}\n{{ flow_run | ui_url }}"
    yield _Alert("failed", frozenset({"prefect.flow-run.Failed"}), run)
    yield _Alert("crashed", frozenset({"prefect.flow-run.Crashed", "prefect.flow-run.TimedOut"}), run)
    hours = int(_NO_SUCCESS_FOR.total_seconds() // 3600)
    yield _Alert(
        f"no successful run in {hours} h",
        frozenset({"prefect.flow-run.Completed", "prefect.flow-run.Cached"}),
        "Look at schedule, scheduler and workers with: pteforge doctor --server",
        settings={"posture": Posture.Proactive, "within": _NO_SUCCESS_FOR},
    )
    about = {"prefect.resource.id": f"pteforge.zoo.{printable(zoo)}"}
    release = "{{ event.payload.release }} at {{ event.payload.url }}, channel {{ event.payload.channel }}"
    reasons = "{{ event.payload.regressions | join('; ') }}"
    yield _Alert("regression", frozenset({"pteforge.regression"}), f"{release}: {reasons}", about)
    yield _Alert("held back", frozenset({"pteforge.held-back"}), release, about)


def _automation(alert: _Alert, deployment: DeploymentResponse, sender: UUID) -> AutomationCore:
    of_deployment = {
        "prefect.resource.id": f"prefect.deployment.{deployment.id}",
        "prefect.resource.role": "deployment",
    }
    trigger = EventTrigger.model_validate(
        {
            "expect": alert.expect,
            "match": alert.resource or _ANY_RUN,
            "match_related": {} if alert.resource else of_deployment,
            "posture": Posture.Reactive,
            "threshold": 1,
            **alert.settings,
        }
    )
    title = f"{deployment.name}: {alert.what}"
    action = SendNotification(block_document_id=sender, subject=f"pteforge {title}", body=alert.body)
    return AutomationCore(
        name=f"pteforge {title}", description="Made by `pteforge deploy --alerts`.", trigger=trigger, actions=[action]
    )


def _block(client: SyncPrefectClient, text: str) -> UUID:
    kind, _, name = text.partition("/")
    try:
        return client.read_block_document_by_name(name, kind).id
    except ObjectNotFound as error:
        raise InputError(
            f"there is no block {text!r} to send notifications with; make one in Prefect's UI (Blocks), such as a "
            "Slack webhook, and name it as TYPE/NAME, such as slack-webhook/nights (`prefect block ls` lists them)"
        ) from error
