"""The command plan: memory and time of a step on a GPU, before anything is loaded."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit.cli.app import FAILED, app, console
from grpokit.cli.config_options import ConfigCommand
from grpokit.cli.options import Overrides, Source, whole_number

if TYPE_CHECKING:
    from grpokit.plan.cards import Card
    from grpokit.plan.estimate import Estimate
    from grpokit.plan.needs import Needs, Remedy

_NO_HELP = "No change that the plan knows makes it fit."


@app.command(cls=ConfigCommand)
def plan(
    source: Source,
    overrides: Overrides = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="A card: 'RTX 4090', 'A100 40GB', 'H100' or 'H200'.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, whole_number("--prompt-tokens", help="Tokens of a prompt; else the plan assumes some.")
    ] = None,
) -> None:
    """Estimate memory and time of a training step on a GPU.

    Nothing is loaded, and no GPU is needed. Without --gpu it is this machine's GPU, or a table of all known cards. Exits
    with 1 if the run does not fit on the card, and says what to change.
    """
    from grpokit.config import presets

    config, name = presets.read_config(source, overrides or [])  # before torch is imported, which takes seconds
    from grpokit.plan import cards, table
    from grpokit.plan.estimate import Estimate, needs_of
    from grpokit.plan.remedies import advise, words

    card = cards.here() if gpu is None else cards.by_name(gpu)
    job, needs = needs_of(config, prompt_tokens=prompt_tokens)
    plans = {(): needs}

    def planned(changes: tuple[str, ...], on: Card) -> Estimate:
        if changes not in plans:
            changed, _ = presets.read_config(source, [*(overrides or []), *changes])
            plans[changes] = needs_of(changed, prompt_tokens=prompt_tokens)[1]
        return Estimate(card=on, needs=plans[changes])

    def advice(on: Card) -> Sequence[Remedy]:
        def fits(changes: tuple[str, ...]) -> tuple[Needs, bool]:
            estimate = planned(changes, on)
            return estimate.needs, estimate.fits

        return advise(job, needs, fits)

    out = console()
    if card is None:
        estimates = [planned((), each) for each in cards.CARDS]
        remedies = {each.card.name: advice(each.card) for each in estimates if not each.fits}
        out.print(f"{name}: a training step, by card\n", markup=False)
        out.print(table.cards(estimates, remedies))
        out.print("\n--gpu NAME shows the parts and the phases of one card.", markup=False)
        _print_assumptions(estimates[0])
        return
    estimate = planned((), card)
    out.print(f"{name} on {table.title(card)}\n", markup=False, soft_wrap=True)
    out.print(table.memory(estimate))
    times = table.time(estimate)
    if times is not None:
        out.print()
        out.print(times)
    moment, most = estimate.peak
    room = f"{most / cards.GIB:.1f} of {card.usable / cards.GIB:.1f} GiB, at the moment '{moment}'"
    if estimate.fits:
        out.print(f"\nIt fits: {room}.", markup=False)
        _print_assumptions(estimate)
        return
    out.print(f"\nIt does not fit: {room}.", markup=False)
    remedies = advice(card)
    if remedies:
        changes = words(remedies)
        after = planned(changes, card)
        typed = shlex.join(["grpokit", "plan", source, *(overrides or []), *changes])
        seconds = sum(after.seconds().values())
        out.print(
            f"It fits with {shlex.join(changes)}: {after.peak[1] / cards.GIB:.1f} GiB"
            f"{f', {seconds:,.1f} s a step' if seconds else ''}.",
            markup=False,
            soft_wrap=True,
        )
        for remedy in remedies:
            out.print(f"  {shlex.join(remedy.words)}: {remedy.price}", markup=False, soft_wrap=True)
        out.print(f"  {typed}", markup=False, soft_wrap=True)
    else:
        out.print(_NO_HELP, markup=False)
    _print_assumptions(estimate)
    raise typer.Exit(FAILED)


def _print_assumptions(estimate: Estimate) -> None:
    from grpokit.plan import table

    out = console()
    out.print("\nassumed", markup=False)
    for line in table.assumptions(estimate):
        out.print(f"  {line}", markup=False, soft_wrap=True)
