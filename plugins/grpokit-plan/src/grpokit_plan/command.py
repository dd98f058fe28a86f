"""`grpokit plan`: memory and time of a step on a GPU, before anything is loaded."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from grpokit.cli.app import console
from grpokit.cli.options import Overrides, PresetOrFile
from grpokit.config import presets
from grpokit.config.schema import RunConfig
from grpokit.errors import UsageError, nearest
from grpokit_plan import cards, table
from grpokit_plan.cards import GIB, Card
from grpokit_plan.estimate import needs_of
from grpokit_plan.needs import Job, Needs
from grpokit_plan.planner import Planner
from grpokit_plan.remedies import words


def plan(
    source: PresetOrFile,
    overrides: Overrides = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="A card such as 'RTX 4090', or its memory: '24 GB'.")] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option("--prompt-tokens", min=1, help="Tokens of a prompt; by default an estimate.")
    ] = None,
    phase: Annotated[str | None, typer.Option("--phase", help="A phase of the run; by default the first.")] = None,
) -> None:
    """Estimate memory and time of a training step on a GPU.

    No weights are loaded, and no GPU is needed. Without --gpu it uses this machine's GPU, or shows a table of cards. If
    the run does not fit on the card, the command says what to change, and exits with 1.
    """
    config, name = presets.read_config(source, overrides or [])
    card = None if gpu is None else cards.by_name(gpu)
    which, policy, own = _phase(config, phase)
    from grpokit.runs import build  # only now: it imports torch, which takes seconds

    modifiers = build.modifiers(own)
    objective = build.objective(own)
    reference = objective.needs_reference or any(x.needs_reference for x in modifiers)
    entropy = any(x.needs_entropy for x in modifiers)

    def planned(changes: tuple[str, ...]) -> tuple[Job, Needs]:
        changed, _ = presets.read_config(source, [*(overrides or []), *changes])
        _, _, changed_phase = _phase(changed, phase)
        waiting = console(stderr=True).status("counting what a step needs", spinner="line")
        with waiting:  # half a minute for a large model
            return needs_of(
                changed_phase,
                reference=reference,
                entropy=entropy,
                whole_groups=objective.whole_groups,
                prompt_tokens=prompt_tokens,
                policy=policy,
            )

    planner = Planner(planned)
    card = card or cards.here()
    title = f"{name}, phase '{which}'" if which else name
    fits = True
    if card is None:
        _print_cards(planner, title)
    else:
        fits = _print_card(planner, card, title, source, overrides or [])
    print("\nassumed", *table.assumptions(planner.on(card or cards.CARDS[0])), sep="\n  ")
    if not fits:
        raise typer.Exit(1)


def _phase(config: RunConfig, name: str | None) -> tuple[str, str, RunConfig]:
    """Name, policy and config of a phase: the one of this name, or the first.

    Raises:
        UsageError: there is no such phase.
    """
    phases = {phase.name: (phase.name, phase.policy or "", own) for phase, own in config.phased()}
    if name is None or name in phases:
        return phases[name or next(iter(phases))]
    known = f"The phases are {', '.join(phases)}." if config.phases else "This run has no phases."
    raise UsageError(f"There is no phase '{name}'{nearest(name, phases)}. {known}")


def _print_cards(planner: Planner, name: str) -> None:
    """A line for each usual card."""
    print(f"{name}: a training step, by card\n")
    usual = [card for card in cards.CARDS if card.listed]
    advice = {card.name: planner.remedies(card) for card in usual}
    helpful = {card.name: advice[card.name] for card in usual if planner.on(card, words(advice[card.name])).fits}
    console().print(table.cards([planner.on(card) for card in usual], helpful))
    print("\n--gpu NAME shows the parts and the phases of one card.")


def _print_card(planner: Planner, card: Card, name: str, source: str, overrides: Sequence[str]) -> bool:
    """Parts and phases on a card, and what to change if it does not fit; returns whether it does."""
    estimate = planner.on(card)
    print(f"{name} on {table.title(card)}\n")
    console().print(table.memory(estimate))
    if times := table.time(estimate):
        print()
        console().print(times)
    moment, most = estimate.peak
    fits = "It fits" if estimate.fits else "It does not fit"
    print(f"\n{fits}: {table.number(most / GIB)} of {card.usable / GIB:.1f} GiB at the peak, which is in '{moment}'.")
    if estimate.fits:
        return True
    remedies = planner.remedies(card)
    changes = words(remedies)
    after = planner.on(card, changes)
    moment, least = after.peak
    if not after.fits:
        all_of_them = f"With all of them it needs {table.number(least / GIB)} GiB in '{moment}'"
        print(f"No change that the plan knows makes it fit. {all_of_them}:\n  {shlex.join(changes)}")
        return False
    seconds = sum(after.seconds().values())
    time = f" and {table.number(seconds)} s a step" if seconds else ""
    print(f"It fits with {table.number(least / GIB)} GiB{time} after these changes:")
    for remedy in remedies:
        print(f"  {shlex.join(remedy.words)}  ({remedy.price})")
    changed = {word.partition("=")[0] for word in changes}
    others = [word for word in overrides if word.partition("=")[0] not in changed]
    print(f"  {shlex.join(['grpokit', 'train', source, *others, *changes])}")
    return False
