"""Low-rank adapters around a diffusion transformer."""

from __future__ import annotations

from collections.abc import Sequence

from peft import LoraConfig, PeftModel
from torch import nn

from grpokit.errors import UsageError, nearest, shown
from grpokit_hf.models.adapters import ALL_LINEAR, AdapterSettings, around


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
    asked, exact = [targets] if isinstance(targets, str) else list(targets), list[str]()
    for target in layers if asked == [ALL_LINEAR] else asked:
        named = [name for name in modules if name == target or name.endswith(f".{target}")]
        own = [name for name in named if isinstance(modules[name], nn.Linear)]
        if not own:
            kinds = sorted({_kind(name) for name in layers})
            raise UsageError(
                f"lora: targets: no linear layer of {type(transformer).__name__} is called {shown(target)}"
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
    start = len(parts) - (2 if parts[-1].isdigit() and len(parts) > 1 else 1)
    return ".".join(parts[start:])
