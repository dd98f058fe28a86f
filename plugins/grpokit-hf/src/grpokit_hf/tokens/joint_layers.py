"""A decoder's layers in fewer calls, for decoding: one product for queries, keys and values, one for gate and up.

A few rows take a CPU hardly longer to multiply than the calls take that lead there. So attention, gated MLPs and norms
are computed here in as few calls as they need. Modules are known by their parts, whichever family they are from: a
module's own forward must give what the formula gives, which is tried once, or it is left alone. For models whose
weights are all fp32, without autocast and without gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from grpokit_hf.models.forwards import Forward, flat, replaced_forwards
from grpokit_hf.tokens.lean_layers import SCALES, alike, fp32_modules, gated_mlps, rms_norms, trial_rows
from grpokit_hf.tokens.packed_attention import Packed, Rules

_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_NORMS = {"q_norm", "k_norm"}
_GIVEN = {"hidden_states", "position_embeddings", "position_ids", "attention_mask"}  # tensors that a forward may get
_rules: WeakKeyDictionary[nn.Module, Rules | None] = WeakKeyDictionary()  # None: it computes something else


def joint_forwards(
    model: nn.Module, linears: Container[nn.Module], product: Callable[[Sequence[nn.Module]], Forward]
) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
    """The modules that need fewer calls, each with a forward that does.

    Args:
        model: any module.
        linears: the linear layers that `product` knows.
        product: for some of them, what takes [n, K] to their outputs [n, m], side by side.
    """
    for norm, eps in rms_norms(fp32_modules(model)):
        yield norm, _norm(norm, eps)
    for mlp in gated_mlps(model):
        if _may_be_joint(mlp, linears, ("gate_proj", "up_proj", "down_proj")):
            inputs = product([mlp.gate_proj, mlp.up_proj])
            yield mlp, _gated(mlp, inputs, product([mlp.down_proj]))
    for layer in fp32_modules(model):
        if _is_attention(layer, linears) and _rules.get(layer, True) is not None:
            inputs = product([layer.q_proj, layer.k_proj, layer.v_proj])
            projections = [part for name, part in layer.named_children() if name in _PROJECTIONS]
            alone = [(part, flat(product([part]))) for part in projections]
            yield layer, _Attention(layer, inputs, product([layer.o_proj]), alone)


def _may_be_joint(module: nn.Module, linears: Container[nn.Module], names: Iterable[str]) -> bool:
    """Whether these parts of a module can be multiplied by, and nobody listens to what its parts do."""
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.children())
    return not hooked and all(getattr(module, name) in linears for name in names)


def _is_attention(module: Any, linears: Container[nn.Module]) -> bool:
    """Whether a module has the parts and the sizes that `_Attention` needs."""
    names = set(dict(module.named_children()))
    width = getattr(module, "head_dim", None)
    own = list(module.parameters(recurse=False))
    if names not in (_PROJECTIONS, _PROJECTIONS | _NORMS) or width is None or own:
        return False
    if not _may_be_joint(module, linears, _PROJECTIONS):
        return False
    for name in names & _NORMS:
        if any(p.shape != (width,) for p in getattr(module, name).parameters()):
            return False
    queries, keys = module.q_proj.out_features, module.k_proj.out_features
    return bool(queries == module.o_proj.in_features and keys == module.v_proj.out_features)


def _norm(norm: Any, eps: float) -> Forward:
    weight: Tensor = norm.weight
    return lambda x: nn.functional.rms_norm(x, weight.shape, weight, eps)


def _gated(mlp: Any, inputs: Forward, output: Forward) -> Forward:
    def forward(x: Tensor) -> Tensor:
        gate, up = inputs(x.flatten(0, -2)).chunk(2, -1)
        y = output(mlp.act_fn(gate) * up)
        return y.view(*x.shape[:-1], y.shape[-1])

    return forward


class _Attention:
    """A forward for attention with rotated queries and keys (Su et al., 2021, arXiv:2104.09864), perhaps normed first.

    Args:
        module: its own forward is used where this one does not apply.
        inputs: the product for queries, keys and values.
        output: the product for what comes out.
        alone: the four layers and the products of each, for a module that computes something else: the call that finds
            this out must give the same bits as all later ones.
    """

    def __init__(
        self, module: Any, inputs: Forward, output: Forward, alone: Sequence[tuple[nn.Module, Forward]]
    ) -> None:
        self.module = module
        self.own = module.forward
        self.inputs = inputs
        self.output = output
        self.alone = alone
        self.width: int = module.head_dim
        self.normed = "q_norm" in dict(module.named_children())
        self.heads: int = module.q_proj.out_features // self.width
        self.kv: int = module.k_proj.out_features // self.width

    def __call__(self, *given: Any, **named: Any) -> Any:
        packed, rotation = named.get("packed"), named.get("position_embeddings")
        if given or packed is None or rotation is None:
            return self.own(*given, **named)
        if self.module not in _rules:
            _rules[self.module] = self._find_rules(**named)
        rules = _rules[self.module]
        if rules is None:
            with replaced_forwards(self.alone):
                return self.own(**named)
        return self._compute(named["hidden_states"], rotation, packed, rules), None

    def _compute(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], packed: Packed, rules: Rules) -> Tensor:
        """Hidden states [1, N, H], cosines and sines [1, N, D] -> [1, N, H]."""
        cos, sin = (x[0, :, None] for x in rotation)
        turns = self.heads + self.kv
        projected = self.inputs(hidden[0])
        projected = projected.view(-1, turns + self.kv, self.width)
        turned, value = projected[:, :turns], projected[:, turns:]
        if self.normed:
            query, key = turned[:, : self.heads], turned[:, self.heads :]
            turned = torch.cat([self.module.q_norm(query), self.module.k_norm(key)], 1)
        first, second = turned.chunk(2, -1)
        turned = turned * cos + torch.cat([-second, first], -1) * sin
        query, key = turned[:, : self.heads], turned[:, self.heads :]
        attended = packed.attend(self.module.layer_idx, query, key, value, rules)
        return self.output(attended.flatten(1))[None]

    def _find_rules(self, **named: Any) -> Rules | None:
        """What the module's own forward asks of attention; None where it does not compute this formula.

        Both get random tensors: at a sequence's first token a rotation is none, and many formulas look alike.
        """
        hidden, rotation = named["hidden_states"], named["position_embeddings"]
        usual = (*hidden.shape[:-1], self.width)
        if [x.shape for x in rotation] != [usual, usual]:
            return None
        others = [named[name] for name in named if name not in _GIVEN]
        if any(isinstance(x, Tensor) for x in others):
            return None
        own, here = _Heard(), _Heard()
        trial = named | self._trial(named) | {"packed": own}
        want, *_ = self.own(**trial)
        if len(own.calls) != 1:
            return None
        rules, *wanted = own.calls[0]
        have = self._compute(trial["hidden_states"], trial["position_embeddings"], here, rules)
        _, *computed = here.calls[0]
        pairs = zip((have[0], *computed), (want[0], *wanted), strict=True)
        return rules if all(alike(a, b, relative=1e-4) for a, b in pairs) else None

    def _trial(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Random tensors in place of those that a forward got."""
        generator = torch.Generator().manual_seed(0)
        hidden, near = named["hidden_states"], named.get("position_ids")
        rows = trial_rows(hidden.shape[-1], generator)
        shape = (1, len(SCALES), self.width)
        rotation = [torch.randn(shape, generator=generator).to(x) for x in named["position_embeddings"]]
        trial = {"hidden_states": rows[None].to(hidden), "position_embeddings": tuple(rotation)}
        if near is not None:  # some scale the queries of far positions
            places = torch.randint(2**20, (*near.shape[:-1], len(SCALES)), generator=generator)
            trial["position_ids"] = places.to(near)
        return trial


class _Heard(Packed):
    """Tokens that see only themselves, whose attention remembers what it was given.

    Attributes:
        calls: of each call the rules, query, key and value.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Rules, Tensor, Tensor, Tensor]] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """See `Packed`."""
        self.calls.append((rules, query, key, value))
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1)
