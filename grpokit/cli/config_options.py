"""Commands that take a config: their help shows presets and keys, and an unknown option gets the likely key."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from grpokit.errors import UsageError

_USUAL = (
    "trainer.steps",
    "trainer.prompts_per_step",
    "trainer.group_size",
    "trainer.micro_batch_size",
    "trainer.learning_rate",
    "trainer.objective",
    "eval.every",
    "run.dir",
    "run.save_every",
    "trackers.use",
    "seed",
)


class ConfigCommand(TyperCommand):
    """A command with KEY=VALUE words that change a config."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command.

        Raises:
            UsageError: an unknown option has the name of a config key.
        """
        known = {name for parameter in self.params for name in parameter.opts} | {"--help"}
        for word in args:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                hint = _hint(name)
                if hint:
                    raise UsageError(
                        f"There is no option {name}{hint}. Write a setting of the run as KEY=VALUE without dashes, "
                        "such as trainer.learning_rate=1e-4."
                    )
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the installed presets and the usual keys below the options."""
        from grpokit import registry

        with formatter.section("Presets (`grpokit plugins` lists all that is installed)"):
            formatter.write_dl([(spec.name, spec.summary) for _, spec in registry.installed("preset")])
        with formatter.section("Usual keys (`grpokit schema` prints all)"):
            formatter.write_dl([(key, _described(key)) for key in _USUAL])


def _hint(option: str) -> str:
    """The config's key for an option of a command, as a hint; empty for a name that no config has."""
    from grpokit.config.mistakes import key_for
    from grpokit.config.schema import RunConfig

    return key_for(option.removeprefix("--").rpartition(".")[2], RunConfig)


def _described(key: str) -> str:
    """A key's meaning and default, as the config's schema has them."""
    from grpokit.config.schema import RunConfig

    group, _, name = key.rpartition(".")
    model: Any = RunConfig.model_fields[group].annotation if group else RunConfig
    meaning = model.model_json_schema()["properties"][name].get("description", "").rstrip(".")
    default = model.model_fields[name].get_default(call_default_factory=True)
    return "; ".join(part for part in (meaning, "" if default in (None, []) else f"default {default}") if part)
