"""A decoder's layers in fewer calls, for decoding: one product for queries, keys and values, one for gate and up.

A few rows take a CPU hardly longer to multiply than the calls take that lead there. So attention, gated MLPs and norms
are computed here in as few calls as they need. Modules are known by their parts, whichever family they are from: a
module's own forward must give what the formula gives, which is tried once, or it is left alone. For models whose
weights are all fp32, without autocast and without gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from grpokit.policies.lean_layers import fp32_modules, gated_mlps, rms_norms
from grpokit.policies.packed_attention import Packed, Rules, causal_attention

Product = Callable[[Tensor], Tensor]

_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_NORMS = {"q_norm", "k_norm"}
_rules: WeakKeyDictionary[nn.Module, Rules | None] = WeakKeyDictionary()  # None: it computes something else


def joint_forwards(
    model: nn.Module, linears: Container[nn.Module], product: Callable[[Sequence[nn.Module]], Product]
) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
    """The modules that need fewer calls, each with a forward that does.

    Args:
        model: any module.
        linears: the linear layers that `product` knows.
        product: for some of them, what takes [n, K] to their outputs [n, m], side by side.
    """
    for norm, eps in rms_norms(model):
        yield norm, _norm(norm, eps)
    for mlp in gated_mlps(model):
        if all(layer in linears for layer in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
            yield mlp, _gated(mlp, product([mlp.gate_proj, mlp.up_proj]), product([mlp.down_proj]))
    for layer in fp32_modules(model):
        if not _is_attention(layer) or (layer in _rules and _rules[layer] is None):
            continue
        if all(getattr(layer, name) in linears for name in _PROJECTIONS):
            inputs = product([layer.q_proj, layer.k_proj, layer.v_proj])
            yield layer, _Attention(layer, inputs, product([layer.o_proj]))


def _is_attention(module: Any) -> bool:
    """Whether a module has the parts and the sizes that `_Attention` needs."""
    names, width = {name for name, _ in module.named_children()}, getattr(module, "head_dim", None)
    if names not in (_PROJECTIONS, _PROJECTIONS | _NORMS) or width is None:
        return False
    q, k, v, o = (getattr(module, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    of_heads = all(p.shape == (width,) for name in names & _NORMS for p in getattr(module, name).parameters())
    return of_heads and q.out_features == o.in_features and k.out_features == v.out_features


def _norm(norm: Any, eps: float) -> Product:
    weight: Tensor = norm.weight
    return lambda x: nn.functional.rms_norm(x, weight.shape, weight, eps)


def _gated(mlp: Any, inputs: Product, output: Product) -> Product:
    def forward(x: Tensor) -> Tensor:
        gate, up = inputs(x.flatten(0, -2)).chunk(2, -1)
        return output(mlp.act_fn(gate) * up).view(*x.shape[:-1], -1)

    return forward


class _Attention:
    """A forward for attention with rotated queries and keys (Su et al., 2021, arXiv:2104.09864), perhaps normed first.

    Args:
        module: its own forward is used where this one does not apply.
        inputs: the product for queries, keys and values.
        output: the product for what comes out.
    """

    def __init__(self, module: Any, inputs: Product, output: Product) -> None:
        self.module, self.inputs, self.output, self.own = module, inputs, output, module.forward
        self.width: int = module.head_dim
        self.normed = "q_norm" in dict(module.named_children())
        self.heads, self.kv = (layer.out_features // self.width for layer in (module.q_proj, module.k_proj))

    def __call__(self, *given: Any, **named: Any) -> Any:
        packed, rotation = named.get("packed"), named.get("position_embeddings")
        if given or packed is None or rotation is None:
            return self.own(*given, **named)
        if self.module not in _rules:
            _rules[self.module] = self._find_rules(**named)
        rules = _rules[self.module]
        if rules is None:
            return self.own(**named)
        return self._compute(named["hidden_states"], rotation, packed, rules), None

    def _compute(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], packed: Packed, rules: Rules) -> Tensor:
        """Hidden states [1, N, H], cosines and sines [1, N, D] -> [1, N, H]."""
        cos, sin = (x[0, :, None] for x in rotation)
        turns = self.heads + self.kv
        projected = self.inputs(hidden[0]).view(-1, turns + self.kv, self.width)
        turned, value = projected[:, :turns], projected[:, turns:]
        if self.normed:
            query, key = self.module.q_norm(turned[:, : self.heads]), self.module.k_norm(turned[:, self.heads :])
            turned = torch.cat([query, key], 1)
        first, second = turned.chunk(2, -1)
        turned = turned * cos + torch.cat([-second, first], -1) * sin
        attended = packed.attend(self.module.layer_idx, turned[:, : self.heads], turned[:, self.heads :], value, rules)
        return self.output(attended.flatten(1))[None]

    def _find_rules(self, *, hidden_states: Tensor, position_embeddings: Any, **others: Any) -> Rules | None:
        """What the module's own forward asks of attention; None where it does not compute this formula.

        Both get random tensors: at a sequence's first token a rotation is none, and many formulas look alike there.
        """
        if len(position_embeddings) != 2 or any(x.shape[2:] != (self.width,) for x in position_embeddings):
            return None
        generator = torch.Generator().manual_seed(0)
        given = hidden_states, *position_embeddings
        hidden, cos, sin = (torch.randn(x.shape, generator=generator).to(x) for x in given)
        if others.get("position_ids") is not None:  # some scale the queries of far positions
            near = others["position_ids"]
            others["position_ids"] = torch.randint(2**20, near.shape, generator=generator).to(near)
        heard = _Heard()
        want, *_ = self.own(hidden_states=hidden, position_embeddings=(cos, sin), **others | {"packed": heard})
        have = self._compute(hidden, (cos, sin), heard, heard.rules[0])
        same = heard.rules[0] == heard.rules[-1] and torch.allclose(have, want, rtol=1e-4, atol=1e-5)
        return heard.rules[0] if same else None


class _Heard(Packed):
    """Plain attention that remembers what it was told.

    Attributes:
        rules: of each call.
    """

    def __init__(self) -> None:
        self.rules: list[Rules] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """See `Packed`."""
        self.rules.append(rules)
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        return causal_attention(q, k, v, rules)[0].transpose(0, 1)
