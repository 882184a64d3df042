"""The control plane: operate a runtime from other processes, languages and machines.

`table.py` has one entry for each operation. The routes of the HTTP API, its OpenAPI description,
the Python client and the commands of the command line are derived from these entries, so that they
cannot drift apart.

| module | role |
|---|---|
| `roles.py` | who calls, and what a caller may do |
| `operation.py`, `table.py`, `operations.py`, `requests.py` | what can be called |
| `shapes.py`, `problems.py` | how values and errors look as JSON and on the wire |
| `owner.py` | performs an operation on a runtime: once, with an audit record |
| `http.py`, `answers.py`, `streams.py` | the HTTP API as an ASGI application |
| `channel.py` | the connection of the Python client: many calls at once, answers as they come |
| `listening.py`, `connections.py` | the sockets, and the connections within limits |
| `connecting.py`, `remote.py`, `submits.py`, `following.py` | the Python client |
| `transport.py`, `frames.py` | its connection |
| `joining.py`, `places.py`, `sharing.py`, `loopback.py` | processes that share a store |
"""
