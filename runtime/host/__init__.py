"""The host: everything that a process has once, such as slots, the asyncio loop and the clock."""
