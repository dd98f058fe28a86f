"""Commands that take a config: their help names presets and keys, and an unknown option gets the likely key."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from grpokit.errors import UsageError

_USUAL = (
    "trainer.steps, trainer.prompts_per_step, trainer.group_size, trainer.micro_batch_size, trainer.learning_rate, "
    "trainer.objective, eval.every, run.dir, run.save_every, trackers.use, seed"
)


class ConfigCommand(TyperCommand):
    """A command with KEY=VALUE words that change a config."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command.

        Raises:
            UsageError: an unknown option has the name of a config key.
        """
        known = {name for parameter in self.params for name in parameter.opts} | {"--help"}
        for name in (word.partition("=")[0] for word in args if word.startswith("--")):
            if name not in known and (hint := _hint(name)):
                raise UsageError(
                    f"There is no option {name}{hint}. Write a setting of the run as KEY=VALUE without dashes, "
                    "such as trainer.learning_rate=1e-4."
                )
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the installed presets and the usual keys below the options."""
        from grpokit import registry

        names = ", ".join(spec.name for _, spec in registry.installed("preset"))
        for lines in (f"Presets: {names} (see `grpokit plugins`).", f"Usual keys: {_USUAL} (see `grpokit schema`)."):
            formatter.write_paragraph()
            formatter.write_text(lines)


def _hint(option: str) -> str:
    """The config's key for an option of a command, as a hint; empty for a name that no config has."""
    from grpokit.config.mistakes import key_for
    from grpokit.config.schema import RunConfig

    return key_for(option.removeprefix("--").rpartition(".")[2], RunConfig)
