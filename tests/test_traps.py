"""Mistakes of other implementations that no other test covers; docs/traps.md has the whole table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from grpokit import Decisions, Prompt, RunError, Sample, Trainer, adapter_off, frozen_copy, swapped
from grpokit.objectives import GRPO
from grpokit.rewards.scoring import score_samples
from grpokit.rewards.terms import RewardTerm
from grpokit.sampling import sample_categorical, uniforms
from grpokit_check.check import check_of
from grpokit_check.policy.checks import _CHECKS
from tiny_policies import OBJECTIVES_BY_NAME, TinyTokens, digit_sum

REPO = Path(__file__).parent.parent
PROMPTS = [str(i) for i in range(12)]


def make(policy: TinyTokens | None = None, reward=digit_sum, **options) -> Trainer:
    defaults = {"prompts_per_step": 4, "group_size": 4, "micro_batch_size": 16, "learning_rate": 1e-2, "device": "cpu"}
    return Trainer(policy or TinyTokens(), [reward], PROMPTS, **(defaults | options))


# --- the sampler's distribution and the scored one ------------------------------------------------------------------


class Sampler(TinyTokens):
    """Draws from a changed distribution, and says the log-probs of the drawn tokens in that distribution."""

    both = False  # logprobs changes it likewise

    def changed(self, logits: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def rollout(self, prompts, group_size, *, seeds, evaluate=False):
        found = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
        numbers = torch.tensor([int(p.text) for p in prompts]).repeat_interleave(group_size)
        draws = uniforms(seeds.row, self.length)
        previous, alive = torch.zeros_like(numbers), torch.ones_like(numbers, dtype=torch.bool)
        tokens, logprobs, mask = found.trace.per_row["tokens"], found.old.logprobs, found.mask
        for t in range(self.length):
            logits = self.logits(numbers[:, None], torch.full_like(numbers, t)[:, None], previous[:, None])[:, 0]
            previous, logprobs[:, t] = sample_categorical(self.changed(logits), draws[:, t])
            tokens[:, t], mask[:, t] = previous, alive
            alive = alive & (previous != 0)
        return found

    def logprobs(self, rollout, steps):
        if not self.both:
            return super().logprobs(rollout, steps)
        tokens, prompt = rollout.trace.per_row["tokens"], rollout.trace.per_group["number"][rollout.group_index]
        previous = nn.functional.pad(tokens, (1, 0))[:, :-1][:, steps]
        position = torch.arange(self.length)[steps].expand_as(previous)
        logits = self.changed(self.logits(prompt[:, None].expand_as(previous), position, previous))
        return Decisions(logprobs=logits.log_softmax(-1).gather(-1, tokens[:, steps, None])[..., 0])


class TopK(Sampler):
    def changed(self, logits):
        return logits.masked_fill(logits < logits.topk(3).values[..., -1:], -torch.inf)


class TopP(Sampler):
    def changed(self, logits):
        ordered, order = logits.softmax(-1).sort(-1, descending=True)
        drop = (ordered.cumsum(-1) - ordered > 0.8).gather(-1, order.argsort(-1))
        return logits.masked_fill(drop, -torch.inf)


class Guided(Sampler):
    """Sampled from guided logits: the unconditional ones lie below."""

    def changed(self, logits):
        return 1.5 * logits - 0.5 * logits.roll(1, -1)


class TemperedTwice(Sampler):
    def changed(self, logits):
        return logits / 0.7


@pytest.mark.parametrize("policy", [TopK, TopP, Guided, TemperedTwice])
def test_another_distribution_in_the_scored_pass_is_stopped(policy: type[Sampler]) -> None:
    with pytest.raises(RunError, match=r"logprobs\(\) gives other log-probs than the rollout, before any update"):
        make(policy()).step()


@pytest.mark.parametrize("policy", [Guided, TemperedTwice])
def test_the_same_distribution_in_both_passes(policy: type[Sampler]) -> None:
    both = policy()
    both.both = True
    assert make(both).step().metrics["logprob_diff/max"] < 1e-5


def test_a_mismatch_is_seen_where_old_log_probs_are_the_first_pass_s_own() -> None:
    """In low precision the ratio is 1 by construction, so it shows nothing; the rollout's log-probs do."""
    with pytest.raises(RunError, match=r"the limit is 0\.1 on average in low precision"):
        make(TopK(), mixed_precision="bf16").step()
    assert make(TinyTokens(), mixed_precision="bf16").step().metrics["logprob_diff/mean"] < 0.03


def test_dropout_of_an_adapter_left_on_is_stopped() -> None:
    peft = pytest.importorskip("peft")

    class Lora(TinyTokens):
        def __init__(self, *, training: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            settings = peft.LoraConfig(target_modules=["0", "2", "4"], r=4, lora_dropout=0.5, init_lora_weights=False)
            self.net = peft.get_peft_model(self.net, settings).train(training)

        def reference(self):
            return adapter_off(self.net)

    with pytest.raises(RunError, match="dropout left on"):
        make(Lora(training=True)).step()
    assert make(Lora(training=False)).step().metrics["logprob_diff/max"] < 1e-5


def test_a_sampler_that_ignores_the_trained_weights_is_stopped() -> None:
    """The first step looks healthy; from the second on, the sampler's weights are not those that are trained."""

    class Stale(TinyTokens):
        def rollout(self, prompts, group_size, *, seeds, evaluate=False):
            if self.frozen is None:
                self.frozen = frozen_copy(self.net)
            with swapped(self, "net", self.frozen):
                return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)

    trainer = make(Stale())
    trainer.step()
    with pytest.raises(
        RunError, match=r"In step 2 logprobs\(\) gives other log-probs.*weights that the sampler does not share"
    ):
        trainer.step()


# --- contexts -------------------------------------------------------------------------------------------------------


def test_no_backward_inside_the_reference() -> None:
    class Watched(TinyTokens):
        inside = False
        backwards: list[bool]

        @contextmanager
        def reference(self) -> Iterator[None]:
            with super().reference():
                self.inside = True
                yield
                self.inside = False

        def logprobs(self, rollout, steps):
            found = super().logprobs(rollout, steps)
            if found.logprobs.requires_grad:
                found.logprobs.register_hook(lambda grad: self.backwards.append(self.inside))
            return found

    for kl in ("k3", "k1"):
        for name in ("grpo", "gspo"):
            policy = Watched(slices=3)
            policy.backwards = []
            make(policy, objective=OBJECTIVES_BY_NAME[name](kl_coef=0.1, kl=kl)).step()
            assert policy.backwards
            assert not any(policy.backwards)


def test_one_autocast_around_every_module_of_rollout_logprobs_and_reference() -> None:
    class TwoModules(TinyTokens):
        """A trunk, and a head that is called beside it."""

        def __init__(self) -> None:
            super().__init__()
            self.seen: set[tuple[str, torch.dtype]] = set()
            self.where = "rollout"
            for name, layer in (("trunk", self.net[0]), ("head", self.net[-1])):
                layer.register_forward_hook(lambda *call, name=name: self.seen.add((name, call[2].dtype)))

        def modules(self):
            return {"trunk": self.net[:-1], "head": self.net[-1]}

    policy = TwoModules()
    make(policy, mixed_precision="bf16", objective=GRPO(kl_coef=0.1)).step()
    assert policy.seen == {("trunk", torch.bfloat16), ("head", torch.bfloat16)}


# --- rewards and loss -----------------------------------------------------------------------------------------------


def test_a_text_that_did_not_end_is_no_reason_for_zero() -> None:
    """Visual tokens end without an end token; what an output is worth is for rewards alone to say."""
    samples = [
        Sample(prompt=Prompt(text="p"), output="33", group=0, info={"finish": reason}) for reason in ("length", "stop")
    ]
    assert score_samples([RewardTerm(name="r", reward=digit_sum)], samples).matrix.tolist() == [[2.02], [2.02]]


def test_k1_as_a_loss_pulls_nowhere_on_average_and_k3_does() -> None:
    """The expected on-policy gradient over all outcomes of one softmax decision, by enumeration."""
    logits = torch.tensor([0.5, -0.3, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-0.2, 0.4, 0.3], dtype=torch.float64).log_softmax(-1)
    pulls = {}
    for kl in ("k1", "k3"):
        logprobs = logits.log_softmax(-1)
        new, mask = Decisions(logprobs=logprobs[:, None]), torch.ones(3, 1, dtype=torch.bool)
        ref, zero = Decisions(logprobs=reference[:, None]), torch.zeros(3, dtype=torch.float64)
        value = GRPO(kl_coef=1.0, kl=kl)(new, new.detach(), zero, mask, ref).value[:, 0]
        (pulls[kl],) = torch.autograd.grad((logprobs.exp().detach() * value).sum(), logits)
    assert pulls["k1"].abs().max() < 1e-12
    assert pulls["k3"].abs().max() > 0.05
    assert GRPO(kl_coef=1.0).kl == "k3"


def test_kl_is_not_multiplied_by_the_ratio() -> None:
    """A decision whose ratio is 2 has the KL of its log-probs, not twice that."""
    new = Decisions(logprobs=torch.full((1, 1), -1.0, dtype=torch.float64))
    old = Decisions(logprobs=new.logprobs - torch.tensor(2.0, dtype=torch.float64).log())
    reference = Decisions(logprobs=torch.full((1, 1), -1.5, dtype=torch.float64))
    mask, zero = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.float64)
    value = GRPO(kl_coef=1.0)(new, old, zero, mask, reference).value
    assert float(value) == pytest.approx(torch.tensor(-0.5, dtype=torch.float64).exp().item() + 0.5 - 1, abs=1e-12)


def test_every_objective_looks_at_the_old_log_probs() -> None:
    """Losses that ignore them become unclipped off-policy learning in the second update."""
    new = Decisions(logprobs=torch.full((2, 3), -1.0, dtype=torch.float64))
    mask, advantages = torch.ones(2, 3, dtype=torch.bool), torch.tensor([1.0, -1.0], dtype=torch.float64)
    for name, kind in OBJECTIVES_BY_NAME.items():
        objective = kind()
        near, far = (
            objective(new, Decisions(logprobs=new.logprobs - shift), advantages, mask, None).value
            for shift in (0.0, 1.0)
        )
        assert not torch.equal(near, far), name


# --- safety ---------------------------------------------------------------------------------------------------------

SHIPPED = [*REPO.glob("grpokit/**/*.py"), *REPO.glob("plugins/*/src/**/*.py")]
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda f: str(f.relative_to(REPO)))
def test_nothing_foreign_is_unpickled_or_evaluated(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {a.name for a in node.names} | {getattr(node, "module", None) or ""}
            if names == {"pickle", "UnpicklingError"}:  # what torch.load raises
                continue
            if file.name == "worker_pool.py" and names == {"pickle", ""}:  # to own processes
                continue
            assert not {n.partition(".")[0] for n in names} & FORBIDDEN_MODULES, f"line {node.lineno}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("eval", "exec", "yaml.unsafe_load", "yaml.full_load"), f"line {node.lineno}"
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if called == "torch.load":
                assert keywords.get("weights_only") == "True", f"line {node.lineno}"
            assert keywords.get("trust_remote_code", "False") != "True", f"line {node.lineno}"


def test_the_table_names_tests_that_exist() -> None:
    table = (REPO / "docs/traps.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:tests|plugins)/\S+?\.py)::(\w+)`", table))
    assert len(named) > 40
    for file, test in sorted(named):
        source = (REPO / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {test}\(", source, re.MULTILINE), f"{file} has no {test}"
    checks = set(re.findall(r"check `([a-z-]+)`", table))
    assert checks <= {check_of(test).name for test in _CHECKS}
