"""The commands of the table of operations. `keyrun.hosting.generate` writes this
file, so that the help of the command line imports no operation."""

DERIVED = {
    "submit": "Start a run",
    "submit-or-signal": "Signal a run, or start it",
    "signal": "Signal a run, or all that match",
    "approve": "Approve a run, or all that match",
    "reject": "Reject a run, or all that match",
    "cancel": "Cancel a run, or all that match",
    "pause": "Pause a run, or all that match",
    "resume": "Resume a run, or all that match",
    "redrive": "Run again what has failed",
    "forget": "Remove ended runs",
    "result": "Print the result of a run",
    "pause-key": "Pause all runs of a key",
    "resume-key": "Resume the runs of a key",
    "release": "Release quarantined keys",
    "call": "Call a method of an entity",
    "pause-all": "Pause all runs",
    "resume-all": "Resume all runs",
}
"""The summaries, by the name of the command."""
