"""Definitions: `@step`, `@workflow`, and the registry of workflows."""
