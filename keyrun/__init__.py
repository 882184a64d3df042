"""Keyrun: a durable actor runtime for Python on Trio.

At top level are the names that most programs use: what opens a runtime, what defines workflows,
steps, machines, entities and graphs, the values that they take and return, and the errors that
callers are expected to catch. Every other public name has one home:

- `keyrun.asyncio`: the runtime for asyncio programs
- `keyrun.sync`: the runtime for programs with threads
- `keyrun.errors`: all errors, those at top level included, and their hierarchy
- `keyrun.events`: the events of `rt.events()`
- `keyrun.graphs`: nodes with workflow code, and the view of the execution of a graph
- `keyrun.groups`: the members of a group, its handle and status
- `keyrun.metrics`: metrics of a runtime for Prometheus
- `keyrun.logging`: log lines as JSON, with the run and the step that they come from
- `keyrun.policies`: circuit breakers, rate limits, resources, checkpoints
- `keyrun.schedules`: when a schedule fires, and its status
- `keyrun.status`: what a runtime and a reader report: history, progress, keys, statistics
- `keyrun.testing`: a runtime for tests, on memory and virtual time
- `keyrun.types`: what decorators make and contexts return, for annotations
- `keyrun.web`: the HTTP API of a runtime as an ASGI application

`keyrun.actors`, `keyrun.storage` and `keyrun.flows` are packages that can be used on their own.

`import keyrun` imports none of this. A name is imported when it is first used, so that the command
line, or a program that uses only actors, does not wait for the rest.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from keyrun import actors as actors
    from keyrun import asyncio as asyncio
    from keyrun import errors as errors
    from keyrun import events as events
    from keyrun import graphs as graphs
    from keyrun import groups as groups
    from keyrun import logging as logging
    from keyrun import metrics as metrics
    from keyrun import policies as policies
    from keyrun import runtime as runtime
    from keyrun import schedules as schedules
    from keyrun import status as status
    from keyrun import storage as storage
    from keyrun import sync as sync
    from keyrun import testing as testing
    from keyrun import tracing as tracing
    from keyrun import types as types
    from keyrun import web as web
    from keyrun._errors import KeyrunError as KeyrunError
    from keyrun.control.connecting import connect as connect
    from keyrun.hosting.app import App as App
    from keyrun.hosting.trio_open import open_runtime as open_runtime
    from keyrun.runtime.definitions.step import step as step
    from keyrun.runtime.definitions.workflow import Workflow as Workflow
    from keyrun.runtime.definitions.workflow import workflow as workflow
    from keyrun.runtime.entities.entity import Entity as Entity
    from keyrun.runtime.entities.entity import entity as entity
    from keyrun.runtime.errors import ApprovalRejected as ApprovalRejected
    from keyrun.runtime.errors import Backpressure as Backpressure
    from keyrun.runtime.errors import CallFailed as CallFailed
    from keyrun.runtime.errors import CallTimeout as CallTimeout
    from keyrun.runtime.errors import ChildCancelled as ChildCancelled
    from keyrun.runtime.errors import ChildFailed as ChildFailed
    from keyrun.runtime.errors import CircuitOpen as CircuitOpen
    from keyrun.runtime.errors import GateNotWaiting as GateNotWaiting
    from keyrun.runtime.errors import InputMismatch as InputMismatch
    from keyrun.runtime.errors import InvalidKey as InvalidKey
    from keyrun.runtime.errors import InvalidRunId as InvalidRunId
    from keyrun.runtime.errors import NonDeterminism as NonDeterminism
    from keyrun.runtime.errors import NoOwner as NoOwner
    from keyrun.runtime.errors import PermanentError as PermanentError
    from keyrun.runtime.errors import ReservedHeader as ReservedHeader
    from keyrun.runtime.errors import RunCancelled as RunCancelled
    from keyrun.runtime.errors import RunEnded as RunEnded
    from keyrun.runtime.errors import RunFailed as RunFailed
    from keyrun.runtime.errors import RunQuarantined as RunQuarantined
    from keyrun.runtime.errors import ScopeTimeout as ScopeTimeout
    from keyrun.runtime.errors import SignalTimeout as SignalTimeout
    from keyrun.runtime.errors import StepFailed as StepFailed
    from keyrun.runtime.errors import StepTimeout as StepTimeout
    from keyrun.runtime.errors import TransientError as TransientError
    from keyrun.runtime.errors import UnknownRun as UnknownRun
    from keyrun.runtime.errors import UnknownWorkflow as UnknownWorkflow
    from keyrun.runtime.execution.compensation import Compensation as Compensation
    from keyrun.runtime.execution.context import Context as Context
    from keyrun.runtime.graphs.graph import Graph as Graph
    from keyrun.runtime.graphs.node import Port as Port
    from keyrun.runtime.graphs.node_input import NodeInput as NodeInput
    from keyrun.runtime.handle import RunHandle as RunHandle
    from keyrun.runtime.inspect.reader import Reader as Reader
    from keyrun.runtime.inspect.reader import open_reader as open_reader
    from keyrun.runtime.limits import Limits as Limits
    from keyrun.runtime.machines import Cancel as Cancel
    from keyrun.runtime.machines import Continue as Continue
    from keyrun.runtime.machines import Fail as Fail
    from keyrun.runtime.machines import Succeed as Succeed
    from keyrun.runtime.machines import Turn as Turn
    from keyrun.runtime.machines import machine as machine
    from keyrun.runtime.operator import open_operator as open_operator
    from keyrun.runtime.policies.retry import Retry as Retry
    from keyrun.runtime.recovery.retention import Retention as Retention
    from keyrun.runtime.runtime import Runtime as Runtime
    from keyrun.runtime.steps.current_step import current_step as current_step
    from keyrun.runtime.values import Failure as Failure
    from keyrun.runtime.values import FailureKind as FailureKind
    from keyrun.runtime.values import Priority as Priority
    from keyrun.runtime.values import RunOutcome as RunOutcome
    from keyrun.runtime.values import RunStatus as RunStatus
    from keyrun.runtime.values import State as State
    from keyrun.runtime.waiting.signals import Delivery as Delivery
    from keyrun.storage.errors import StoreClosed as StoreClosed
    from keyrun.storage.errors import StoreCorrupt as StoreCorrupt
    from keyrun.storage.errors import StoreError as StoreError
    from keyrun.storage.errors import StoreFull as StoreFull
    from keyrun.storage.errors import StoreLocked as StoreLocked

_PARTS = (
    "actors",
    "asyncio",
    "errors",
    "events",
    "graphs",
    "groups",
    "logging",
    "metrics",
    "policies",
    "runtime",
    "schedules",
    "status",
    "storage",
    "sync",
    "testing",
    "tracing",
    "types",
    "web",
)
_DEFINED_IN = {
    "App": "keyrun.hosting.app",
    "ApprovalRejected": "keyrun.runtime.errors",
    "Backpressure": "keyrun.runtime.errors",
    "CallFailed": "keyrun.runtime.errors",
    "CallTimeout": "keyrun.runtime.errors",
    "Cancel": "keyrun.runtime.machines",
    "ChildCancelled": "keyrun.runtime.errors",
    "ChildFailed": "keyrun.runtime.errors",
    "CircuitOpen": "keyrun.runtime.errors",
    "Compensation": "keyrun.runtime.execution.compensation",
    "Context": "keyrun.runtime.execution.context",
    "Continue": "keyrun.runtime.machines",
    "Delivery": "keyrun.runtime.waiting.signals",
    "Entity": "keyrun.runtime.entities.entity",
    "Fail": "keyrun.runtime.machines",
    "Failure": "keyrun.runtime.values",
    "FailureKind": "keyrun.runtime.values",
    "GateNotWaiting": "keyrun.runtime.errors",
    "Graph": "keyrun.runtime.graphs.graph",
    "InputMismatch": "keyrun.runtime.errors",
    "InvalidKey": "keyrun.runtime.errors",
    "InvalidRunId": "keyrun.runtime.errors",
    "KeyrunError": "keyrun._errors",
    "Limits": "keyrun.runtime.limits",
    "NodeInput": "keyrun.runtime.graphs.node_input",
    "NoOwner": "keyrun.runtime.errors",
    "NonDeterminism": "keyrun.runtime.errors",
    "PermanentError": "keyrun.runtime.errors",
    "Port": "keyrun.runtime.graphs.node",
    "Priority": "keyrun.runtime.values",
    "Reader": "keyrun.runtime.inspect.reader",
    "ReservedHeader": "keyrun.runtime.errors",
    "Retention": "keyrun.runtime.recovery.retention",
    "Retry": "keyrun.runtime.policies.retry",
    "RunCancelled": "keyrun.runtime.errors",
    "RunEnded": "keyrun.runtime.errors",
    "RunFailed": "keyrun.runtime.errors",
    "RunHandle": "keyrun.runtime.handle",
    "RunOutcome": "keyrun.runtime.values",
    "RunQuarantined": "keyrun.runtime.errors",
    "RunStatus": "keyrun.runtime.values",
    "Runtime": "keyrun.runtime.runtime",
    "ScopeTimeout": "keyrun.runtime.errors",
    "SignalTimeout": "keyrun.runtime.errors",
    "State": "keyrun.runtime.values",
    "StepFailed": "keyrun.runtime.errors",
    "StepTimeout": "keyrun.runtime.errors",
    "StoreClosed": "keyrun.storage.errors",
    "StoreCorrupt": "keyrun.storage.errors",
    "StoreError": "keyrun.storage.errors",
    "StoreFull": "keyrun.storage.errors",
    "StoreLocked": "keyrun.storage.errors",
    "Succeed": "keyrun.runtime.machines",
    "TransientError": "keyrun.runtime.errors",
    "Turn": "keyrun.runtime.machines",
    "UnknownRun": "keyrun.runtime.errors",
    "UnknownWorkflow": "keyrun.runtime.errors",
    "Workflow": "keyrun.runtime.definitions.workflow",
    "connect": "keyrun.control.connecting",
    "current_step": "keyrun.runtime.steps.current_step",
    "entity": "keyrun.runtime.entities.entity",
    "machine": "keyrun.runtime.machines",
    "open_operator": "keyrun.runtime.operator",
    "open_reader": "keyrun.runtime.inspect.reader",
    "open_runtime": "keyrun.hosting.trio_open",
    "step": "keyrun.runtime.definitions.step",
    "workflow": "keyrun.runtime.definitions.workflow",
}
"""The module that defines each name. A test compares this with the imports above."""

# A type checker needs the imports above. It cannot read a computed `__all__`, and with
# `__getattr__` it would accept any name.
if not TYPE_CHECKING:
    __all__ = list(_DEFINED_IN)

    def __getattr__(name: str) -> object:
        if name in _PARTS:
            return importlib.import_module(f"keyrun.{name}")
        if name in _DEFINED_IN:
            found = globals()[name] = getattr(importlib.import_module(_DEFINED_IN[name]), name)
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_PARTS, *__all__})
