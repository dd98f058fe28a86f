"""What a vision-language model hands to its decoder: embeddings of a prompt, with features in the places of pictures.

A model works them out before it calls its decoder. So it is called as always, and stopped there. This needs no
knowledge of a family's vision tower, and gradient flows back into the tower where it trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpokit import UsageError

_PLAIN = ("input_ids", "inputs_embeds", "attention_mask", "position_ids", "past_key_values", "use_cache")
_WHERE, _FEATURES = "visual_pos_masks", "deepstack_visual_embeds"  # features for the first layers (Qwen3-VL)


def embedded(model: Any, prompts: Sequence[Tensor], pictures: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """The embeddings of prompts.

    Args:
        model: a vision-language model.
        prompts: P tensors of tokens [S].
        pictures: of each prompt, further arguments of the model; empty without pictures.

    Returns:
        P tensors [S, 1 + K, H]: each token's embedding, and what is added to it behind the first K layers.
    """
    table = model.get_input_embeddings()
    rows = [
        _stopped_at_decoder(model, tokens, given) if given else table(tokens)[:, None]
        for tokens, given in zip(prompts, pictures, strict=True)
    ]
    most = max(row.shape[1] for row in rows)
    return [torch.nn.functional.pad(row, (0, 0, 0, most - row.shape[1])) for row in rows]


def arguments(behind: Tensor) -> dict[str, Any]:
    """The decoder's arguments for what is added behind its first layers: [N, K, H] -> a mapping, empty if K is 0."""
    if not behind.shape[1]:
        return {}
    everywhere = torch.ones(1, len(behind), dtype=torch.bool, device=behind.device)
    return {_WHERE: everywhere, _FEATURES: list(behind.unbind(1))}


class _Reached(Exception):  # noqa: N818  # no error: the model has got as far as it should
    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given


def _stopped_at_decoder(model: Any, tokens: Tensor, pictures: Mapping[str, Tensor]) -> Tensor:
    """[S] -> [S, 1 + K, H]."""

    def stop(module: Any, args: Any, given: Mapping[str, Any]) -> None:
        raise _Reached(given)

    mask = torch.ones_like(tokens)[None]
    hook = model.get_decoder().register_forward_pre_hook(stop, with_kwargs=True)
    try:
        # The positions are for the decoder, which is not asked.
        model.base_model(
            input_ids=tokens[None], attention_mask=mask, position_ids=mask.cumsum(1), use_cache=False, **pictures
        )
    except _Reached as reached:
        given = reached.given
    finally:
        hook.remove()
    known = (*_PLAIN, _WHERE, _FEATURES)
    strange = [name for name, x in given.items() if isinstance(x, (Tensor, list, tuple)) and name not in known]
    if given["attention_mask"] is not mask:
        strange.append("an attention mask of its own")  # as where the tokens of a picture see each other
    if strange:
        raise UsageError(f"it hands its decoder more than embeddings: {', '.join(strange)}")
    rows: Tensor = given["inputs_embeds"][0]
    if given.get(_WHERE) is None:
        return rows[:, None]
    where = given[_WHERE][0].nonzero()[:, 0]
    behind = [torch.zeros_like(rows).index_put((where,), features.to(rows)) for features in given[_FEATURES]]
    return torch.stack([rows, *behind], 1)
