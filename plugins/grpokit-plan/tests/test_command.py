"""`grpokit plan`: what it prints, its exit codes, and that what it advises can be typed."""

from __future__ import annotations

import re
import shlex
from importlib import resources
from pathlib import Path

import pytest
import yaml
from architecture import imports
from public_names import module_file

from command_line import Call
from grpokit import PolicySpec, registry
from grpokit_plan import cards
from grpokit_plan.cards import Card

PRESET = "lm-arithmetic"  # its model ships with the package


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU."""
    monkeypatch.setattr(cards, "here", lambda: None)


def small(monkeypatch: pytest.MonkeyPatch, mib: float) -> None:
    card = Card(name="small", memory=mib * 2**20, bandwidth=1e12, bf16=1e14, fp32=1e13, names=("small",))
    monkeypatch.setattr(cards, "CARDS", (card,))


def number(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    assert match, text
    return float(match[1])


def test_a_card_that_it_fits_on(call: Call) -> None:
    done = call("plan", PRESET, "--gpu", "h100", "trainer.kl_coef=0.1")
    assert done.code == 0
    assert done.out.startswith(
        "lm-arithmetic on H100 80GB: 80.0 GiB, 3,350 GB/s, 989 TFLOP/s in bf16 (NVIDIA H100 data sheet, SXM)\n"
    )
    assert re.search(r"memory, MiB +rollout +score +train\n", done.out)  # below a GiB
    assert re.search(r"time, s +rollout +reference +train +optimizer +sum\n", done.out)
    assert "It fits: " in done.out
    assert "A prompt has 256 tokens (--prompt-tokens)." in done.out
    assert "Rewards take the memory of their default models" in done.out
    longer = call("plan", PRESET, "--gpu", "h100", "--prompt-tokens", 512)
    assert "A prompt has 512 tokens" in longer.out
    assert max(map(len, done.out.splitlines())) <= 120


def test_a_config_for_the_cpu(call: Call) -> None:
    note = "The config trains on the CPU (trainer.device), but this is the plan for a GPU."
    assert note in call("plan", PRESET, "trainer.device=cpu").out
    assert note not in call("plan", PRESET).out


def test_without_a_gpu_all_cards_are_shown(call: Call) -> None:
    done = call("plan", PRESET)
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines() if " yes " in line]
    assert [row[0] for row in rows] == ["RTX", "RTX", "L40S", "A100", "A100", "H100", "H200"]


def test_this_machines_gpu(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "here", lambda: Card(name="Tesla T4", memory=15 * 2**30))
    done = call("plan", PRESET)
    assert done.out.startswith("lm-arithmetic on Tesla T4: 15.0 GiB; its speeds are not known")
    assert "time, s" not in done.out


def test_what_it_advises_fits_when_it_is_typed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("trainer.micro_batch_size=64", "--gpu", "small")
    small(monkeypatch, 1000)
    peak = number(r"sum .* ([\d.]+)\n", call("plan", PRESET, *words).out)  # MiB
    small(monkeypatch, 0.7 * peak)
    done = call("plan", PRESET, *words)
    assert done.code == 1
    assert "It does not fit: " in done.out
    line = next(line for line in done.out.splitlines() if line.startswith("  grpokit train "))
    typed = shlex.split(line)[2:]
    assert typed[0] == PRESET
    assert len({word.partition("=")[0] for word in typed}) == len(typed)  # each key once
    after = call("plan", *typed, "--gpu", "small")
    assert after.code == 0
    assert "It fits: " in after.out
    table = call("plan", PRESET, words[0])  # of all cards, which is never a failure
    assert table.code == 0
    assert " ".join(typed[1:]) in table.out


def test_nothing_helps(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, 0.01)
    done = call("plan", PRESET, "--gpu", "small")
    assert done.code == 1
    assert re.search(
        r"No change that the plan knows makes it fit. With all of them it needs [<.\d]+ GiB in '", done.out
    )
    assert "no known change" in call("plan", PRESET).out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((PRESET, "--gpu", "K80"), "No card is called 'K80'. Known: "),
        (("toy-glyph",), "preset toy-glyph, line 5: policy: The policy 'toy-glyph' has no plan"),
        ((PRESET, "policy.mx_new_tokens=3"), "policy: The policy 'hf-lm' has no parameter 'mx_new_tokens' (did"),
        ((PRESET, "policy.model=nowhere/at-all"), "policy: The model 'nowhere/at-all' is not a folder here"),
        (("no-such-preset",), "There is no preset called 'no-such-preset'"),
    ],
)
def test_bad_input(call: Call, words: tuple[str, ...], expected: str) -> None:
    done = call("plan", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert expected in done.err


def test_its_words_are_those_of_a_config(call: Call) -> None:
    done = call("plan", PRESET, "--trainer.group_size=4")
    assert done.code == 2
    assert done.err.startswith("error: There is no option --trainer.group_size (did you mean 'trainer.group_size'?).")
    assert "Usual keys: trainer.steps" in call("plan", "--help").out


def test_conformance(call: Call) -> None:
    assert call("check", "plan").code == 0


def test_a_plan_that_returns_something_else(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpokit_lm.plan.plan", lambda parameters, job: 3)
    done = call("plan", PRESET)
    assert done.code == 2
    assert "The plan 'grpokit_lm.plan:plan' returned an object of type int; expected grpokit_plan.Needs." in done.err


def test_a_phase_of_a_run(call: Call, tmp_path: Path) -> None:
    preset = resources.files("grpokit_lm") / f"presets/{PRESET}.yaml"
    settings = yaml.safe_load(preset.read_text())
    del settings["trainer"]["steps"]
    settings["phases"] = [{"name": "short", "steps": 2}, {"name": "wide", "steps": 2, "trainer": {"group_size": 64}}]
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(settings))
    first, wide = (call("plan", path, "--gpu", "h100", *words) for words in ((), ("--phase", "wide")))
    assert first.out.startswith("c, phase 'short' on H100")
    assert wide.out.startswith("c, phase 'wide' on H100")
    seconds = [number(r"time, s.*\n.* ([\d.]+)\n", done.out) for done in (first, wide)]
    assert seconds[1] > 1.5 * seconds[0]
    wrong = call("plan", path, "--phase", "wied")
    assert wrong.code == 2
    assert "There is no phase 'wied' (did you mean 'wide'?). The phases are short, wide." in wrong.err
    assert "There is no phase 'wide'. This run has no phases." in call("plan", PRESET, "--phase", "wide").err


def test_a_policy_with_a_plan_does_without_this_package() -> None:
    """Only `grpokit plan` imports plans: no policy's module leads to one, in functions neither."""
    found = {
        spec.factory.partition(":")[0]
        for plugin in registry.plugins()
        for spec in plugin.specs
        if isinstance(spec, PolicySpec) and spec.plan
    }
    assert "grpokit_lm.policy" in found
    waiting = list(found)
    while waiting:
        file = module_file(waiting.pop())
        new = {each.module for each in imports(file) if each.row.startswith("grpokit_")} - found if file else set()
        found |= new
        waiting += new
    assert not [module for module in found if module.startswith("grpokit_plan")]
