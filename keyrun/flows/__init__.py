"""Flows: graphs that need no Python. Nodes that are there already, templates, and files.

What this needs comes with `pip install "keyrun[flows]"`, and is imported when it is used.
"""

from keyrun.errors import MissingExtra
from keyrun.flows.errors import CodeFailed, NodeFailed, NodeUnavailable, TemplateFailed
from keyrun.flows.files import InvalidFlow, Problem, load, parse
from keyrun.flows.nodes.agent import agent
from keyrun.flows.nodes.approval import approval
from keyrun.flows.nodes.branch import branch
from keyrun.flows.nodes.child import child
from keyrun.flows.nodes.code import code
from keyrun.flows.nodes.http import http

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
    "http",
    "load",
    "parse",
]
