"""Flows: graphs that need no Python, with ready-made nodes, templates and files.

The libraries of the extra `flows` are imported when they are used.
"""

from keyrun.errors import MissingExtra
from keyrun.flows.errors import CodeFailed, NodeFailed, NodeUnavailable, TemplateFailed
from keyrun.flows.files import InvalidFlow, Problem, load, parse
from keyrun.flows.nodes.agent import agent
from keyrun.flows.nodes.approval import approval
from keyrun.flows.nodes.branch import branch
from keyrun.flows.nodes.code import code
from keyrun.flows.nodes.fail import fail
from keyrun.flows.nodes.http import http
from keyrun.flows.nodes.signal import signal
from keyrun.flows.nodes.switch import switch
from keyrun.flows.nodes.wait import wait
from keyrun.flows.nodes.workflow import child

__all__ = [
    "CodeFailed",
    "InvalidFlow",
    "MissingExtra",
    "NodeFailed",
    "NodeUnavailable",
    "Problem",
    "TemplateFailed",
    "agent",
    "approval",
    "branch",
    "child",
    "code",
    "fail",
    "http",
    "load",
    "parse",
    "signal",
    "switch",
    "wait",
]
