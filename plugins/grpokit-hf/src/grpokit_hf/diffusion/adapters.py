"""Low-rank adapters around a diffusion transformer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from peft import LoraConfig, PeftModel
from torch import nn

from grpokit.errors import UsageError, brief, nearest
from grpokit_hf.diffusion.settings import FlowSettings
from grpokit_hf.diffusion.trained_lora import LoraFile, continue_lora, read_lora
from grpokit_hf.models.adapters import ALL_LINEAR, AdapterSettings, around


def adapted(
    transformer: nn.Module,
    settings: FlowSettings,
    *,
    usual: Sequence[str],
    read: Callable[[Path], LoraFile] = read_lora,
) -> PeftModel:
    """Put the adapter of `lora` around a transformer: a new one, or the one that it names.

    Args:
        transformer: of diffusers.
        settings: with `lora`.
        usual: the targets of a new one if `lora` names none.
        read: reads the file of the one that it names.

    Raises:
        UsageError: it does not fit the transformer.
    """
    assert settings.adapter is not None
    assert settings.lora is not None
    if settings.trained_lora is not None:
        return continue_lora(transformer, read(settings.trained_lora), name=str(settings.adapter.adapter))
    targets = settings.adapter.targets if "targets" in settings.lora else usual
    return add_adapter(transformer, settings.adapter, targets)


def add_adapter(transformer: nn.Module, settings: AdapterSettings, targets: str | Sequence[str]) -> PeftModel:
    """Put an adapter around a transformer, whose own parameters then need no gradient.

    Args:
        transformer: of diffusers.
        settings: the adapter's rank and scale.
        targets: the ends of names of linear layers, such as "to_q", or "all-linear".

    Raises:
        UsageError: a target names no linear layer.
    """
    modules = dict(transformer.named_modules())
    layers = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    asked = [targets] if isinstance(targets, str) else list(targets)
    if asked == [ALL_LINEAR]:
        asked = layers
    exact: list[str] = []
    for target in asked:
        named = [name for name in modules if name == target or name.endswith(f".{target}")]
        own = [name for name in named if isinstance(modules[name], nn.Linear)]
        if not own:
            kinds = sorted({_kind(name) for name in layers})
            raise UsageError(
                f"lora: targets: no linear layer of {type(transformer).__name__} is called {brief(target)}"
                f"{nearest(target, [ALL_LINEAR, *kinds])}. It has: {', '.join(kinds)}; or say '{ALL_LINEAR}'."
            )
        exact += [target] if own == named else own  # a list of layers may have the name of a layer elsewhere
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft divides by r, so any number will do
        target_modules=exact,
        use_dora=settings.dora,
        use_rslora=settings.rslora,
    )
    return around(transformer, config, seed=settings.seed)


def _kind(name: str) -> str:
    """A layer's name in its block: "transformer_blocks.0.attn.to_out.0" -> "to_out.0"."""
    parts = name.split(".")
    numbered = parts[-1].isdigit()
    return ".".join(parts[-2:] if numbered else parts[-1:])
