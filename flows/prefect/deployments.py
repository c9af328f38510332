"""Deployments of a zoo's flow: on a schedule, with a form that offers its models and recipes, and with alerts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple

import prefect
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.objects import WorkPool
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.events import AutomationCore
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.types.entrypoint import EntrypointType
from prefect.utilities.callables import ParameterSchema
from pydantic import ValidationError

from ...artifacts.remote_files import missing_bucket, public_url
from ...configs.load import LoadedZoo
from ...errors import InputError, PteforgeError, printable
from ...tasks.lowering.graph import STAGES
from ..reports.comparison import parse_limits
from ..run.request import ExportRequest
from ..run.select import find_toolchain, publication_of, select_models
from ..run.session import load
from .pool import model_deployment
from .server import wait_for_schedule
from .upgrade_flow import FIELDS, upgrade_zoo
from .zoo_flow import export_model, export_zoo

_ENTRYPOINT = "pteforge.flows.prefect.zoo_flow.export_zoo"  # with dots: a path of modules, not of a file
_MODEL_ENTRYPOINT = "pteforge.flows.prefect.zoo_flow.export_model"
_UPGRADE_ENTRYPOINT = "pteforge.flows.prefect.upgrade_flow.upgrade_zoo"


@dataclass(frozen=True)
class Deployed:
    """A deployment that was applied."""

    name: str  # with the flow's: ``export-zoo/nightly``
    change: str  # ``created``, ``updated`` or ``unchanged``
    alerts: tuple[str, ...]  # automations


@dataclass(frozen=True)
class ZooDeployment:
    """A deployment of a zoo's flow, with the request of its runs."""

    request: ExportRequest
    name: str
    cron: str | None = None
    timezone: str | None = None  # an IANA name; None for UTC
    alerts: str | None = None  # TYPE/NAME of a block that sends notifications
    upgrade_to: str | None = None  # a toolchain: an upgrade to it is rehearsed
    fail_on: str | None = None  # limits of what an upgrade may change

    @cached_property
    def _loaded(self) -> LoadedZoo:
        return load(self.request)

    @cached_property
    def _flow(self) -> Any:
        return upgrade_zoo if self.upgrade_to else export_zoo

    def _parameters(self) -> dict[str, Any]:
        """Those of the flow; raises InputError for what an upgrade does not take."""
        parameters: dict[str, Any] = self.request.parameters(defaults=False)
        if self.upgrade_to is None:
            return parameters
        find_toolchain(self._loaded, self.upgrade_to)
        if others := sorted(parameters.keys() - set(FIELDS)):
            raise InputError(f"--upgrade-to compares whole files and releases none; leave out {', '.join(others)}")
        if self.fail_on:
            parse_limits(self.fail_on)
            parameters["fail_on"] = self.fail_on
        return {**parameters, "to": self.upgrade_to}

    def _schedules(self) -> list[DeploymentScheduleCreate]:
        """None or one; raises InputError for a cron line or a time zone that does not exist."""
        if self.cron is None:
            return []
        try:
            schedule = CronSchedule(cron=self.cron, timezone=self.timezone or "UTC")
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise InputError(
                f"the schedule {self.cron!r} in {self.timezone or 'UTC'} cannot be used: {reason}; "
                'write five fields, for example --cron "0 2 * * *"'
            ) from error
        return [DeploymentScheduleCreate(schedule=schedule, active=True)]

    def _form(self) -> dict[str, Any]:
        """The parameters' JSON schema, with choices; a default of ``null`` would give fields a tab of their own."""
        zoo = self._loaded.zoo
        schema: dict[str, Any] = copy.deepcopy(self._flow.parameters.model_dump_for_openapi())
        fields: dict[str, dict[str, Any]] = schema["properties"]
        for name, entry in fields.items():
            field = ExportRequest.model_fields.get(name)
            entry["title"] = (field and field.title) or name.replace("_", " ").capitalize()
            if {"type": "null"} in entry.get("anyOf", ()):
                del entry["default"]
                entry.update(*(option for option in entry.pop("anyOf") if option != {"type": "null"}))
        recipes = dict.fromkeys(recipe for model in zoo.models for recipe in zoo.recipes_of(model))
        for field_name, names in (("models", zoo.models), ("recipes", recipes)):
            choices = {"type": "array", "items": {"type": "string", "enum": ["*", *names]}}
            options = [choices | {"title": "Choose"}, {"type": "string", "title": "Pattern"}]
            fields[field_name] |= {"anyOf": options, "default": ["*"]}
        if "until" in fields:
            fields["until"]["enum"] = [stage.name for stage in STAGES]
        return schema

    def settings(self) -> dict[str, Any]:
        """The fields of Prefect's deployment; raises InputError if the zoo or the schedule cannot be used."""
        select_models(self._loaded, self.request.models, self.request.recipes)
        publication_of(self._loaded, self.request)
        return {
            "schedules": self._schedules(),
            "parameters": self._parameters(),
            "parameter_openapi_schema": self._form(),
            "description": f"Lowers {self.request.zoo.name} and verifies its files. Made by `pteforge deploy`.",
            "tags": [f"zoo:{self._loaded.zoo.name}"],
        }

    def apply(self, pool: str) -> Deployed:
        """Creates or updates the deployment on the configured server.

        Raises:
            InputError: the zoo or the schedule cannot be used, or there is no such work pool.
            PteforgeError: the server cannot be reached, refuses the deployment, or does not schedule its runs.
        """
        wanted = self.settings() | {"work_pool_name": pool}
        wanted["entrypoint"] = _UPGRADE_ENTRYPOINT if self.upgrade_to else _ENTRYPOINT
        self._check_buckets()
        run = self._loaded.zoo.run
        with _server_errors(), get_client(sync_client=True) as client:
            _check_pool(client, pool)
            others = {toolchain.pool for toolchain in self._loaded.zoo.toolchains.values()}
            for others_pool in sorted({*filter(None, others), *([run.pool] if run.on == "pool" and run.pool else [])}):
                _deploy_models(client, others_pool, shared=others_pool == pool)
            name = f"{self._flow.name}/{self.name}"
            change = _apply(client, name, wanted)
            deployment = client.read_deployment_by_name(name)
            alerts = _apply_alerts(client, deployment, self._loaded.zoo.name, self.alerts) if self.alerts else ()
            if wanted["schedules"]:
                wait_for_schedule(client, deployment)
            return Deployed(name, change, alerts)

    def _check_buckets(self) -> None:
        """Raises InputError if the bucket of the store or the releases is known not to exist."""
        publication = self._loaded.zoo.publish
        for url in (self.request.store, self.request.publish or (publication and publication.url)):
            if url and (bucket := missing_bucket(url)):
                create = f"create it first, for example with: aws s3 mb s3://{bucket}"
                raise InputError(f"the bucket {bucket!r} of {public_url(url)} does not exist; {create}")


def _deploy_models(client: SyncPrefectClient, pool: str, *, shared: bool) -> None:
    """Creates or updates the deployment whose runs lower models; it may be `shared` with the run of the zoo."""
    if _check_pool(client, pool).concurrency_limit == 1 and shared:
        raise InputError(
            f"the work pool {pool!r} runs one flow at a time, so the runs of models would wait for the zoo's for ever; "
            f"raise its limit with: prefect work-pool set-concurrency-limit {pool} 4"
        )
    wanted = {
        "schedules": [],
        "parameters": {},
        "parameter_openapi_schema": export_model.parameters.model_dump_for_openapi(),
        "description": "Lowers models of a zoo. Runs of `export-zoo` start these. Made by `pteforge deploy`.",
        "tags": [],
        "work_pool_name": pool,
        "entrypoint": _MODEL_ENTRYPOINT,
    }
    _apply(client, model_deployment(pool), wanted)


def _apply(client: SyncPrefectClient, full_name: str, wanted: dict[str, Any]) -> str:
    """Creates or updates a deployment; returns the change."""
    flow, _, name = full_name.partition("/")
    before = None
    with suppress(ObjectNotFound):
        before = client.read_deployment_by_name(full_name)
    limited = before is not None and before.global_concurrency_limit is not None
    if before and not limited and _comparable({name: getattr(before, name) for name in wanted}) == _comparable(wanted):
        change = "unchanged"
    else:
        change = "updated" if before else "created"
        flow_id = client.create_flow_from_name(flow)
        client.create_deployment(flow_id, name, pull_steps=[], enforce_parameter_schema=True, **wanted)
    if before and limited:  # it would end runs: see `zoo_flow.take_turn`
        client.update_deployment(before.id, DeploymentUpdate(concurrency_limit=None))
    return change


def serve(deployment: ZooDeployment) -> None:
    """Starts runs on the schedule and from the UI, one at a time, until the process ends; raises as `apply`."""
    settings = deployment.settings()
    form = settings.pop("parameter_openapi_schema")
    served: Any = export_zoo.to_deployment(deployment.name, entrypoint_type=EntrypointType.MODULE_PATH, **settings)
    served.entrypoint = _ENTRYPOINT  # Prefect would take the name of the flow's body
    served._parameter_openapi_schema = ParameterSchema(**form)  # noqa: SLF001 - there is no public way
    with _server_errors():
        prefect.serve(served, limit=1)


@contextmanager
def _server_errors() -> Iterator[None]:
    try:
        yield
    except PteforgeError:
        raise
    except PrefectHTTPStatusError as error:
        raise PteforgeError(f"Prefect's server refuses the deployment: {error}") from error
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise PteforgeError(f"Prefect's server cannot be reached ({problem}); check PREFECT_API_URL") from error


def _check_pool(client: SyncPrefectClient, pool: str) -> WorkPool:
    try:
        return client.read_work_pool(pool)
    except ObjectNotFound as error:
        pools = ", ".join(sorted(existing.name for existing in client.read_work_pools())) or "none"
        create = f"prefect work-pool create {pool} -t process"
        raise InputError(f"there is no work pool {pool!r} (there: {pools}); make it with: {create}") from error


def _comparable(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings without what the server adds to schedules."""
    schedules = [(entry.schedule.cron, entry.schedule.timezone or "UTC") for entry in settings["schedules"]]
    return {**settings, "schedules": schedules}


_NO_SUCCESS_FOR = timedelta(hours=26)
"""A day, and two hours for a night that takes longer than the one before."""


def _apply_alerts(client: SyncPrefectClient, deployment: DeploymentResponse, zoo: str, block: str) -> tuple[str, ...]:
    """Creates or updates a deployment's alerts; returns their names. InputError if `block` is no ``TYPE/NAME``."""
    kind, _, name = block.partition("/")
    try:
        sender = client.read_block_document_by_name(name, kind).id
    except ObjectNotFound as error:
        raise InputError(
            f"there is no block {block!r} to send notifications with; make one in Prefect's UI (Blocks), such as a "
            "Slack webhook, and name it as TYPE/NAME, such as slack-webhook/nights (`prefect block ls` lists them)"
        ) from error
    names = []
    for alert in _alerts(deployment, zoo):
        title = f"{deployment.name}: {alert.what}"
        automation = AutomationCore(
            name=f"pteforge {title}",
            description="Made by `pteforge deploy --alerts`.",
            trigger=alert.trigger,
            actions=[SendNotification(block_document_id=sender, subject=f"pteforge {title}", body=alert.body)],
        )
        if existing := client.read_automations_by_name(automation.name):
            client.update_automation(existing[0].id, automation)
        else:
            client.create_automation(automation)
        names.append(automation.name)
    return tuple(names)


class _Alert(NamedTuple):
    what: str
    trigger: EventTrigger
    body: str


def _alerts(deployment: DeploymentResponse, zoo: str) -> Iterator[_Alert]:
    resource = f"prefect.deployment.{deployment.id}"
    of_deployment = {"prefect.resource.id": resource, "prefect.resource.role": "deployment"}
    runs = {"match": {"prefect.resource.id": "prefect.flow-run.*"}, "match_related": of_deployment}
    releases = {"match": {"prefect.resource.id": f"pteforge.zoo.{printable(zoo)}"}}

    def trigger(events: str, about: dict[str, Any], **settings: Any) -> EventTrigger:
        fields = {"expect": events.split(), "posture": Posture.Reactive, "threshold": 1, **about, **settings}
        return EventTrigger.model_validate(fields)

    state = "{{ flow_run.name }}: {{ flow_run.state.message }}\n{{ flow_run | ui_url }}"
    yield _Alert("failed", trigger("prefect.flow-run.Failed", runs), state)
    yield _Alert("crashed", trigger("prefect.flow-run.Crashed prefect.flow-run.TimedOut", runs), state)
    completed = "prefect.flow-run.Completed prefect.flow-run.Cached"
    yield _Alert(
        f"no successful run in {_NO_SUCCESS_FOR.total_seconds() / 3600:.0f} h",
        trigger(completed, runs, posture=Posture.Proactive, within=_NO_SUCCESS_FOR),
        "Look at schedule, scheduler and workers with: pteforge doctor --server",
    )
    release = "{{ event.payload.release }} at {{ event.payload.url }}, channel {{ event.payload.channel }}"
    why = f"{release}: {{{{ event.payload.reasons | join('; ') }}}}"
    accept = "to accept this: {{ event.payload.acceptance }}"
    yield _Alert("regression", trigger("pteforge.regression", releases), f"{why}\n{accept}")
    yield _Alert("withdrawn", trigger("pteforge.withdrawn", releases), why)
