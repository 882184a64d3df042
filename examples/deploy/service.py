"""The application that the Dockerfile packs: replace it by your own."""

from keyrun import App, Context, step, workflow


@step
async def charge(customer: str) -> str:
    return f"receipt for {customer}"


@workflow
async def checkout(ctx: Context, customer: str) -> str:
    return await ctx.step(charge, customer)


app = App(workflows=[checkout])
