"""The conformance kit: every check bites, and only where it should; both fronts."""

from __future__ import annotations

import copy
import importlib.metadata
import io
import json
import math
import re
import sys
import textwrap
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import broken_components as broken
import broken_rewards
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from command_line import Call
from distributions import announcing, distribution
from grpokit import Policy, Prompt, RewardError, RewardSpec, Sample, UsageError, registry
from grpokit.advantages import group
from grpokit.training.contract import missing_methods
from grpokit_check import (
    Check,
    CheckError,
    NotChecked,
    advantage_checks,
    check_command,
    component,
    example_samples,
    outcomes,
    parametrize_with_checks,
    policy_checks,
    reward_checks,
)
from grpokit_check.policy.case import same_output
from grpokit_check.reward import dependencies, examples, unusual_outputs
from tiny_policies import TinyGaussian, TinyTokens
from tiny_rewards import Elsewhere, always_stops

ROOT = Path(__file__).parents[3]
PROMPTS = ["1", "2", "3"]
WORDS = ["banana", "cat", "a", "dog", "aa b"]
EXAMPLES = (({"output": "banana"}, {"output": "dog"}), ({"output": "a"}, {"output": "ab"}))
SPEC = RewardSpec(api=1, name="letters", factory="broken_components:good", accepts={"text"}, range=(0, 1))


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def samples() -> list[Sample]:
    return [Sample(prompt=Prompt(text=w), output=w, group=i // 2) for i, w in enumerate(WORDS)]


def hooks(factory: Any) -> dict[str, Any]:
    gaussian = isinstance(factory, type) and issubclass(factory, TinyGaussian)
    return {"decisions": broken.decisions} if gaussian else {"decode": broken.decode}


def failed(checks: Any) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(checks) if o.failed}


@parametrize_with_checks(policy_checks(broken.Tokens, PROMPTS, decode=broken.decode))
def test_a_good_policy_of_tokens(check: Check) -> None:
    check()


@parametrize_with_checks(policy_checks(TinyGaussian, PROMPTS, decisions=broken.decisions))
def test_a_good_policy_of_gaussian_steps(check: Check) -> None:
    check()


@parametrize_with_checks(policy_checks(broken.Copies, PROMPTS))
def test_a_good_policy_of_copies(check: Check) -> None:
    check()


def test_a_policy_in_low_precision_is_compared_as_far_as_rounding_allows() -> None:
    found = list(outcomes(policy_checks(partial(TinyTokens, dtype=torch.bfloat16), PROMPTS)))
    assert not [each.name for each in found if each.failed]
    assert {each.name for each in found if "less than fp32" in each.message} == {"batch-size", "gradient"}
    wrong = failed(policy_checks(partial(broken.PerGroupByPlace, dtype=torch.bfloat16), PROMPTS))
    assert "ratio-is-one" in wrong


@parametrize_with_checks(reward_checks(broken.good, samples(), spec=SPEC, module="tiny_policies"))
def test_a_good_reward(check: Check) -> None:
    if check.name != "light-plugin" and not check.name.startswith("ladder"):  # tiny_policies imports torch
        check()


@pytest.mark.parametrize(("factory", "caught"), broken.POLICIES, ids=[f.__name__ for f, _ in broken.POLICIES])
def test_only_the_right_check_catches_a_broken_policy(factory: Callable[[], Any], caught: set[str]) -> None:
    found = failed(policy_checks(factory, PROMPTS, **hooks(factory)))
    assert set(found) == caught, found
    assert all(re.match(r"Expected .*; got .*\. Usual cause: .*\.$", m, re.DOTALL) for m in found.values()), found


@pytest.mark.parametrize("factory", [broken.OutputsShifted, broken.OutputsOfThePrompt])
def test_mixed_up_outputs_are_caught_without_decode(factory: Callable[[], Any]) -> None:
    assert set(failed(policy_checks(factory, PROMPTS))) == {"scored-is-sampled"}


@pytest.mark.parametrize("factory", [broken.AnotherStd, broken.SummedDensity])
def test_a_wrong_density_is_caught_without_the_decisions(factory: Callable[[], Any]) -> None:
    assert set(failed(policy_checks(factory, PROMPTS))) == {"gaussian"}


def test_a_method_that_only_the_protocol_has_is_missing() -> None:
    """Its stubs can be called, and give None."""

    class Forgetful(Policy):
        def rollout(self, prompts, group_size, *, seeds, evaluate=False):
            raise NotImplementedError

        def state_dict(self):
            raise NotImplementedError

    assert (
        missing_methods(Forgetful())
        == missing_methods(Forgetful)
        == ["logprobs", "reference", "modules", "load_state_dict"]
    )
    assert missing_methods(broken.Tokens()) == missing_methods(broken.Tokens) == []
    assert failed(policy_checks(Forgetful, PROMPTS))["protocol"].startswith(
        "Expected the methods rollout, logprobs, slices, reference, modules, state_dict, load_state_dict; got none "
        "called logprobs, reference, modules, load_state_dict."
    )


@pytest.mark.parametrize(("make", "caught"), broken.REWARDS)
def test_only_the_right_check_catches_a_broken_reward(make: Callable[[], Any], caught: set[str]) -> None:
    found = failed(reward_checks(make(), samples(), spec=SPEC))
    assert set(found) == caught, found
    assert all(re.match(r"Expected .*; got .*\. Usual cause: .*\.$", m, re.DOTALL) for m in found.values()), found


def test_every_check_has_a_component_that_it_alone_catches() -> None:
    alone = {next(iter(caught)) for _, caught in [*broken.POLICIES, *broken.REWARDS] if len(caught) == 1}
    names = {c.name for c in policy_checks(broken.Tokens, PROMPTS)}
    alone |= {name for name, *_ in (*broken_rewards.PICTURES, *broken_rewards.TEXTS, *broken_rewards.AT_THE_EDGE)}
    alone |= {"examples", "missing-dependency"}  # their own tests below
    full = replace(SPEC, accepts={"text", "image"}, install="pip install x", examples=EXAMPLES)
    names |= {c.name for c in reward_checks(broken.good, samples(), spec=full)}
    # A missing method, and a draw that is always the same, fail another check too.
    assert names - alone == {"protocol", "seeded"}


@pytest.mark.slow
def test_a_heavy_plugin_module() -> None:
    checks = list(reward_checks(broken.good, samples(), module="tiny_policies"))
    assert "got torch, numpy" in failed(checks)["light-plugin"]
    assert not failed(reward_checks(broken.good, samples(), module="grpokit.builtin.plugin"))


def test_a_reward_that_scores_nothing_or_the_wrong_number() -> None:
    assert "NaN for all 5" in failed(reward_checks(lambda s: [float("nan")] * len(s), samples()))["numbers"]
    found = failed(reward_checks(lambda s: [1.0], samples()))
    assert "returned 1 score for 5 samples" in found["numbers"]


def refuses(batch: Any) -> list[float]:
    raise RewardError("It scores sounds.")


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (
            always_stops,
            r"got StopIteration \(tiny_rewards\.py, line \d+, in .*\) on every sample\. Usual cause: samples of a kind",
        ),
        (refuses, r"got RewardError: It scores sounds on every sample\. Usual cause: samples of a kind that this"),
        (lambda s: [1.0], r"got another answer: it returned 1 score for 5 samples.* Usual cause: .*one score"),
        (
            lambda s: ["good"] * len(s),
            r"got another answer: it gave 'good' \(str\) for row 0 \(prompt 'banana'\)\. Usual cause",
        ),
        (lambda s: 0.5, r"got another answer: it returned a float\. Usual cause"),
        (
            lambda s: [1 / (len(x.output) - 1) for x in s],
            r"ZeroDivisionError: .* on row 2, 'a'\. Usual cause",
        ),
        (lambda s: [1.0 / (len(s) < 5)] * len(s), r"ZeroDivisionError: .* on the samples together\. Usual cause"),
        (lambda s: sys.exit(0), r"got SystemExit: 0 .* on every sample\. Usual cause"),
    ],
)
def test_a_reward_without_scores_fails_one_check(reward: Any, said: str) -> None:
    found = list(
        outcomes(reward_checks(reward, samples(), spec=SPEC, params={"x": 1}, module="grpokit.builtin.plugin"))
    )
    assert [o.name for o in found if o.failed] == ["numbers"]
    assert re.search(said, found[0].message), found[0].message
    assert ".." not in found[0].message
    assert "checked" not in found[0].message  # no name from inside
    assert {o.message for o in found if o.state == "not checked"} == {"numbers failed"}
    assert [o.name for o in found if o.ok] == ["light-plugin"]
    assert sum(o.name.startswith("ladder-") and o.state == "not checked" for o in found) == 3


@pytest.mark.parametrize("whole", [np.zeros(5000), torch.zeros(5000), torch.zeros(5000, dtype=torch.bfloat16)])
def test_a_change_in_the_middle_of_an_array_is_seen(whole: Any) -> None:
    """Its repr is "[0, 0, 0, ..., 0, 0, 0]" before and after."""

    def marks(batch: Any) -> list[float]:
        for s in batch:
            s.output[2500] = 1e-9
        return [0.5] * len(batch)

    def reads(batch: Any) -> list[float]:
        return [float(s.output[2500]) for s in batch]

    for reward, changed in ((marks, True), (reads, False)):
        rows = [Sample(prompt=Prompt(text="p"), output=copy.deepcopy(whole), group=group) for group in (0, 1)]
        checks = {c.name: c for c in reward_checks(reward, rows, ladder=False)}
        if changed:
            with pytest.raises(CheckError, match="got a change of output in row 0"):
                checks["inputs-unchanged"]()
        else:
            checks["inputs-unchanged"]()


def test_what_is_changed_once_is_seen() -> None:
    """A change in place that a second call does not repeat, whichever check runs first."""

    def shrinks(batch: Any) -> list[float]:
        for s in batch:
            s.output.thumbnail((8, 8))
            s.prompt.target.thumbnail((8, 8))
        return [0.5] * len(batch)

    checks = {c.name: c for c in reward_checks(shrinks, example_samples({"image"}), ladder=False)}
    checks["numbers"]()
    checks["order"]()
    with pytest.raises(CheckError, match=r"got a change of prompt\.image, prompt\.target, output in row 0"):
        checks["inputs-unchanged"]()


@pytest.mark.parametrize(
    ("reward", "came"),
    [
        (
            broken.sorts_in_place,
            r"of 5 samples as it is; got the rows \[2, 4, 0, 1, 3\]\. Usual cause: samples\.s",
        ),
        (
            broken.takes_out,
            r"of 5 samples as it is; got the rows \[\]\. Usual cause: samples\.sort\(\), reverse\(\), pop",
        ),
    ],
)
def test_a_list_of_samples_that_is_changed_in_place(reward: Any, came: str) -> None:
    """Named, and seen by no later check: each call has a list of its own, and the caller's stays as it is."""
    rows = samples()
    found = failed(reward_checks(reward, rows, spec=SPEC))
    assert re.search(came, found["list-unchanged"]), found
    assert [s.output for s in rows] == WORDS


@pytest.mark.parametrize(("makes", "failing"), [("text", False), ("image", True), ("", False), ("toy:points", False)])
def test_outputs_of_another_kind_than_the_spec_says(makes: str, failing: bool) -> None:
    found = failed(policy_checks(broken.Tokens, PROMPTS, makes=makes))
    assert found.keys() == ({"outputs"} if failing else set())
    if failing:
        assert found["outputs"].startswith(
            "Expected outputs of the type Image, since the spec says makes='image'; got a str in row 0. Usual cause: "
        )


def test_the_command_takes_the_kind_of_output_from_the_spec() -> None:
    assert "outputs" in {check.name for check in component.of_policy("toy-lm", {}, None)}


def test_draws_that_cannot_be_compared_with_an_entropy() -> None:
    checks = {c.name: c for c in policy_checks(lambda: broken.Tokens(entropy=False), PROMPTS)}
    with pytest.raises(NotChecked, match="no entropy to compare the draws with"):
        checks["frequencies"]()


@pytest.mark.parametrize(
    ("mode", "level", "same"), [("RGB", 1, True), ("RGB", 2, False), ("L", 1, True), ("L", 2, False)]
)
def test_rounding_moves_a_pixel_by_one_level_at_most(mode: str, level: int, same: bool) -> None:
    picture = Image.new(mode, (4, 4), 7 if mode != "RGB" else (7, 7, 7))
    changed = picture.copy()
    changed.putpixel((1, 2), 7 + level if mode != "RGB" else (7, 7 - level, 7))
    assert same_output(picture, changed) == same
    assert not same_output(picture, changed.resize((4, 5)))


def test_an_error_of_grpokits_own_ends_in_one_full_stop() -> None:
    def test() -> None:
        raise RewardError("It cannot.")

    with pytest.raises(CheckError, match=r"^Expected that y; got RewardError: It cannot\.$"):
        Check(name="x", summary="y", test=test)()


def test_a_warning_fails_no_check() -> None:
    def warns(batch: Any) -> list[float]:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return broken.good(batch)

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("error")
        assert not failed(reward_checks(warns, samples(), spec=SPEC))
    assert {str(w.message) for w in heard} == {"old"}


def test_an_error_of_a_component_is_a_failure_and_random_states_are_kept() -> None:
    def broken_down() -> None:
        torch.manual_seed(0)
        raise ZeroDivisionError("oh")

    before = torch.random.get_rng_state()
    with pytest.raises(
        CheckError,
        match=r"^Expected that y; got ZeroDivisionError: oh \(test_checks\.py, line \d+, in broken_down\)\. Usual",
    ):
        Check(name="x", summary="y", test=broken_down)()
    assert torch.equal(before, torch.random.get_rng_state())


def test_too_little_to_check_with() -> None:
    with pytest.raises(UsageError, match="at least two prompts"):
        list(policy_checks(broken.Tokens, ["1"]))
    with pytest.raises(UsageError, match="at least two groups"):
        list(reward_checks(broken.good, samples()[:2]))
    with pytest.raises(UsageError, match="no example samples of sound"):
        example_samples({"sound"})


@pytest.mark.parametrize(
    ("name", "params", "weak"),
    [
        ("exact-match", {}, set()),
        ("contains", {}, {"ladder-extra-text"}),
        ("numeric-answer", {}, {"ladder-extra-text"}),
        ("length", {"maximum": 5}, set()),
        ("soft-overlong", {"maximum": 20, "cache": 10}, set()),
        ("repetition-penalty", {}, set()),
        ("format", {"pattern": "[0-9]+"}, set()),
    ],
)
def test_built_in_rewards(name: str, params: dict[str, Any], weak: set[str]) -> None:
    spec = registry.find("reward", name)[1]
    assert isinstance(spec, RewardSpec)
    reward = registry.create("reward", name, params)
    for samples in (example_samples({"text"}), None):  # None: the spec's examples, where there are any
        found = list(outcomes(reward_checks(reward, samples, spec=spec, params=params)))
        assert not [o for o in found if o.failed]
        assert {o.name for o in found if o.state == "expected failure"} == weak == set(spec.expected_failures)
    page = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")
    assert not weak or f"`{name}`" in page.partition("## Expected failures")[2]


def test_a_reward_may_expect_that_it_scores_nothing_and_needs_nothing() -> None:
    """human-vote scores only what a run draws, and is built without the packages of its page."""
    spec = registry.find("reward", "human-vote")[1]
    assert isinstance(spec, RewardSpec)
    reward = registry.create("reward", "human-vote")
    found = list(outcomes(reward_checks(reward, example_samples({"text"}), spec=spec, ladder=False)))
    assert not [o for o in found if o.failed]
    assert {o.name for o in found if o.state == "expected failure"} == set(spec.expected_failures)


# --- what a reward meets beyond its samples ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "reward", "said"), broken_rewards.AT_THE_EDGE)
def test_outputs_at_the_edge(name: str, reward: Any, said: str) -> None:
    kind = "text" if name == "degenerate-texts" else "image"
    found = failed(reward_checks(reward, example_samples({kind})[:-1] if kind == "image" else samples(), ladder=False))
    assert set(found) == {name}, found
    assert said in found[name]


def test_a_reward_that_says_nan_and_warns_is_sound() -> None:
    def honest(batch: Any) -> list[float]:
        values = [float(np.abs(np.diff(broken_rewards.pixels(s.output), axis=0)).mean()) for s in batch]
        return [x if math.isnan(x) else min(1.0, x) for x in values]

    def meant(batch: Any) -> list[float]:
        with np.errstate(all="ignore"):
            return broken_rewards.relative_brightness(batch)

    for reward in (honest, meant):
        unusual_outputs.degenerate_images(reward, example_samples({"image"})[0])


def test_a_huge_picture_must_not_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(batch: Any) -> list[float]:
        sizes = [broken_rewards.pixels(s.output).shape for s in batch]
        return [float(np.ones((h, w, 16)).sum() / (16 * h * w)) for h, w, _ in sizes]

    def thrifty(batch: Any) -> list[float]:
        return broken_rewards.brightness([replace(s, output=s.output.convert("RGB").resize((8, 8))) for s in batch])

    sample = example_samples({"image"})[0]
    monkeypatch.setattr(unusual_outputs, "MEMORY", 100 * 2**20)
    unusual_outputs.degenerate_images(thrifty, sample)
    with pytest.raises(
        CheckError, match=r"at most 100 MiB of memory for a picture of 4096 x 1024 pixels; got \d{3} MiB"
    ):
        unusual_outputs.degenerate_images(greedy, sample)


def test_every_kind_of_odd_output_is_tried() -> None:
    seen: list[Any] = []

    def notes(batch: Any) -> list[float]:
        seen.extend(s.output for s in batch)
        return [0.0] * len(batch)

    unusual_outputs.degenerate_images(notes, example_samples({"image"})[0])
    assert {(1, 1), (1, 64), (64, 1), (4096, 1024)} <= {picture.size for picture in seen}
    assert {picture.mode for picture in seen} == {"RGB", "1", "L", "LA", "P", "RGBA", "CMYK", "I;16"}
    seen.clear()
    unusual_outputs.degenerate_texts(notes, samples()[0])
    assert max(map(len, seen)) >= 100_000
    assert "" in seen
    assert any("\0" in text for text in seen)


def test_a_long_answer_is_read_in_no_time() -> None:
    reward = registry.create("reward", "numeric-answer")
    long = {"x" * 10**6: 0.0, "one 2, " * 10**5: 1.0, "1" * 10**5 + "x2": 1.0}
    prompt = Prompt(text="", target="2")
    started = time.perf_counter()
    assert reward([Sample(prompt=prompt, output=text, group=0) for text in long]) == list(long.values())
    assert time.perf_counter() - started < 20  # it was hours


def test_examples_hold_or_say_what_is_wrong() -> None:
    spec = replace(SPEC, examples=EXAMPLES)
    assert not failed(reward_checks(broken.good, spec=spec))  # they are the samples, too
    turned = replace(SPEC, examples=[(worse, better) for better, worse in EXAMPLES])
    found = failed(reward_checks(broken.good, spec=turned))
    assert set(found) == {"examples"}
    assert "of pair 0 of the spec's examples; got 0.0 for 'dog' and 0.5 for 'banana'" in found["examples"]
    unscored = replace(SPEC, examples=[(EXAMPLES[0][0], {"output": "nothing"})])

    def nan(batch: Any) -> list[float]:
        return [math.nan if s.output == "nothing" else x for x, s in zip(broken.good(batch), batch, strict=True)]

    assert set(failed(reward_checks(nan, spec=unscored))) == {"examples"}
    (other,) = [o for o in outcomes(reward_checks(broken.good, spec=turned, params={"x": 1})) if o.name == "examples"]
    assert other.state == "not checked"
    assert "may need other parameters" in other.message


def test_examples_from_a_function_and_those_that_cannot_be_read() -> None:
    named = replace(SPEC, examples="test_testing_examples:pairs")
    module = types.ModuleType("test_testing_examples")
    vars(module)["pairs"] = lambda: EXAMPLES
    sys.modules[module.__name__] = module
    assert [s.output for s in examples.samples_for({"text"}, named)] == ["banana", "dog", "a", "ab"]
    single = replace(SPEC, examples=EXAMPLES[:1])
    assert [s.group for s in examples.samples_for({"text"}, single)] == [0, 0, 1, 1]
    for wrong, said in (
        ("no.such:thing", r"examples .* cannot be found: there is no module 'no'"),
        ([{"output": "x"}], r"must be pairs \(better, worse\)"),
        ([({"output": "x"}, {"text": "y"})], "'output' and possibly .* missing .* 'output'"),
    ):
        with pytest.raises(UsageError, match=said):
            list(reward_checks(broken.good, spec=replace(SPEC, examples=wrong)))


def test_what_a_function_accepts_is_found_by_calling_it() -> None:
    assert examples.accepted(broken.good) == {"text"}
    assert examples.accepted(broken_rewards.mse) == {"image"}
    assert examples.accepted(lambda batch: [1.0] * len(batch)) == {"text", "image"}
    assert examples.accepted(lambda batch: [1 / 0]) == {"text"}
    names = {check.name for check in reward_checks(broken_rewards.brightness)}
    assert "degenerate-images" in names
    assert "degenerate-texts" not in names


MODULES = {
    "late_plugin": """
        from grpokit import RewardSpec, hookimpl
        @hookimpl
        def grpokit_rewards():
            for name in ("early", "late", "hides"):
                yield RewardSpec(api=1, name=name, factory=f"late_{name}:Score", install="pip install late-reward")
    """,
    "late_early": "import skimage\nclass Score:\n    pass\n",
    "late_late": "class Score:\n    def __call__(self, samples):\n        import skimage\n",
    "late_hides": "try:\n    import skimage\nexcept ImportError:\n    raise ValueError('sorry') from None\n",
}


def check_missing(spec: Any) -> None:
    next(dependencies.dependency_checks(spec, {})).test()


def test_a_missing_dependency_must_name_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
    record = tmp_path / "late_reward-1.0.dist-info"
    record.mkdir()
    requires = "Requires-Dist: grpokit\nRequires-Dist: numpy\nRequires-Dist: scikit_image>=0.24\n"
    extra = "Requires-Dist: pytest; extra == 'test'\n"
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: late-reward\nVersion: 1.0\n{requires}{extra}")
    (record / "entry_points.txt").write_text("[grpokit]\nlate = late_plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.plugins.cache_clear()
    try:
        assert dependencies.third_party("late-reward") == ["skimage"]  # grpokit brings numpy, and pytest is an extra
        spec = {name: registry.find("reward", name)[1] for name in ("early", "late", "hides")}
        check_missing(spec["early"])
        for name, said in (("late", "got a reward that was built"), ("hides", "sorry")):
            with pytest.raises(CheckError, match=said):
                check_missing(spec[name])
    finally:
        monkeypatch.undo()
        registry.plugins.cache_clear()


@pytest.mark.slow
def test_shipped_rewards_name_their_remedy() -> None:
    check_missing(registry.find("reward", "ocr")[1])
    with pytest.raises(NotChecked, match="grpokit-grounding declares no package beyond those of grpokit"):
        check_missing(replace(registry.find("reward", "box-iou")[1], install="pip install x"))  # type: ignore[type-var]


PLUGIN = """
from grpokit import RewardSpec, hookimpl
@hookimpl
def grpokit_rewards():
    yield RewardSpec(api=1, name="spread", factory="spread.reward:Score")
"""
FINE = """
from __future__ import annotations
from typing import TYPE_CHECKING
import math, grpokit, torch, yaml  # what grpokit needs
from skimage import metrics, color
from spread_plugin import hookimpl
from .more import mean
import a_module_that_nobody_has
if TYPE_CHECKING:
    import scipy
try:
    import scipy.special
except ImportError:
    import math
with contextlib.suppress(ImportError):
    import scipy.linalg
if importlib.util.find_spec("scipy"):
    import scipy.fft
import lpips  # declared by the extra of another that is asked for
def engine():
    import pytest
class Score: ...
"""


@pytest.fixture
def spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed plugin whose own modules import only what its distribution declares."""
    files = {
        "spread_plugin.py": PLUGIN,
        "spread/__init__.py": "",
        "spread/reward.py": FINE,
        "spread/more.py": "import json\n",
        "other-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"
        "Requires-Dist: lpips; extra == 'far-sight'\nRequires-Dist: scipy; extra == 'near'\n",
        "spread_reward-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: spread-reward\nVersion: 1.0\n"
        "Provides-Extra: engine\nRequires-Dist: grpokit\nRequires-Dist: scikit_image>=0.24\n"
        "Requires-Dist: pytest; extra == 'engine'\nRequires-Dist: Other[Far_Sight]>=1\n",
        "spread_reward-1.0.dist-info/top_level.txt": "spread\nspread_plugin\n",
        "spread_reward-1.0.dist-info/entry_points.txt": "[grpokit]\nspread = spread_plugin\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    registry.plugins.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    registry.plugins.cache_clear()


@pytest.mark.slow
def test_what_a_reward_imports_must_be_declared(spread: Path) -> None:
    spec: Any = registry.find("reward", "spread")[1]
    dependencies.declared_dependencies("spread-reward", spec)
    for place, code in (
        ("late.py, line 4", "import numpy\nclass Score:\n    def __call__(self):\n        from scipy import ndimage\n"),
        ("math.py, line 2", "from scipy.stats import mean\n"),
    ):
        file = spread / "spread" / place.partition(",")[0]
        file.write_text(code if file.stem == "late" else f"import json\n{code}")
        with pytest.raises(CheckError, match=f"'scipy' in {place}, which it does not declare"):
            dependencies.declared_dependencies("spread-reward", spec)
        assert failed(c for c in reward_checks(broken.good, samples(), spec=spec) if c.name.startswith("declared"))
        elsewhere = replace(spec, placement={"capsule": ["scipy"]})
        assert "declared-dependencies" not in {c.name for c in reward_checks(broken.good, samples(), spec=elsewhere)}
        file.unlink()
    assert "spread.reward" not in sys.modules  # read, and not imported


@pytest.mark.slow
def test_shipped_rewards_declare_what_they_import(monkeypatch: pytest.MonkeyPatch) -> None:
    homes = importlib.metadata.packages_distributions()  # reads the file list of each package that is installed
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: homes)
    ours = {s.name: (p.package, s) for p, s in registry.installed("reward") if p.package.startswith("grpokit-")}
    assert {"ssim", "ocr", "lpips", "box-iou", "aesthetic", "ring"} <= set(ours)
    for package, spec in ours.values():
        dependencies.declared_dependencies(package, spec)  # type: ignore[arg-type]


def test_groups_decide_where_the_spec_says_so() -> None:
    def above_all(batch: Any) -> list[float]:
        scores = broken.good(batch)
        return [x - min(scores) for x in scores]

    def above_the_group(batch: Any) -> list[float]:
        scores = broken.good(batch)
        lowest = {
            g: min(x for x, s in zip(scores, batch, strict=True) if s.group == g) for g in {s.group for s in batch}
        }
        return [x - lowest[s.group] for x, s in zip(scores, batch, strict=True)]

    grouped = replace(SPEC, per_sample=False)
    assert not failed(reward_checks(above_the_group, samples(), spec=grouped))
    assert set(failed(reward_checks(above_the_group, samples(), spec=SPEC))) == {"batch-size"}
    assert set(failed(reward_checks(above_all, samples()[:2] + samples()[3:], spec=grouped))) == {"batch-size"}


def test_the_command_on_a_policy(call: Call) -> None:
    words = ("check", "broken_components:Tokens", "seed=3", "--prompt", "1", "--prompt", "2")
    done = call(*words)
    assert done.code == 0, done.out + done.err
    assert "all 18 checks passed, 2 not checked" in done.out
    done = call("check", "broken_components:SlicesOverlap", "--prompt", "1", "--prompt", "2")
    assert done.code == 1
    assert re.search(r"slices +failed +Expected a slice that begins at 4; got\s+slice\(3,\s+7", done.out)
    assert "1 of 18 checks failed" in done.out


@pytest.mark.parametrize("name", [pytest.param("toy-lm", marks=pytest.mark.slow), "length", "broken_components:good"])
def test_the_command_on_what_is_shipped(call: Call, name: str) -> None:
    done = call("check", name)
    assert done.code == 0, done.out + done.err


def test_a_reward_that_only_submits_is_checked_and_closed(call: Call) -> None:
    before = Elsewhere.closed
    done = call("check", "tiny_rewards:Elsewhere")
    assert (done.code, Elsewhere.closed) == (0, before + 1), done.out + done.err
    done = call("check", "tiny_rewards:Elsewhere", "reward=tiny_rewards:letters")  # which takes any output's length
    table = " ".join(done.out.split())  # however it was wrapped
    assert re.search(r"wrong-type failed Expected a GrpokitError, .*; got TypeError", table), done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["toy-ml"], "no component called 'toy-ml' (did you mean 'toy-lm'?)"),
        (["toy-lm", "temprature=1"], "no parameter 'temprature' (did you mean 'temperature'?)"),
        (["toy-lm", "temperature"], "parameter 'temperature' is not of the form key=value"),
        (["toy-lm", "--prompt", "hello", "--prompt", "you"], "toy-lm reads sums"),
        (["toy-lm", "--prompt", "1+1"], "at least two prompts"),
        (
            ["my_policie:My", "--prompt", "red"],
            "The component 'my_policie:My' cannot be found: there is no module 'my_pol",
        ),
        (["broken_components:Tokenz", "--prompt", "1"], "has no such function or class (did you mean 'Tokens'?)"),
        (["math:pi", "--prompt", "1"], "should be 'pi' in 'math', which is a float, not a function or class."),
        (["length", "--kind", "rewrad"], "--kind must be policy, reward, "),
        (["tiny_policies:TinyTokens"], "give prompts that it can read: --prompt or --prompts"),
        (["gspo", "--prompt", "1"], "'gspo' is neither policy nor reward, so it reads no prompts"),
        (["length", "--prompt", "1"], "need samples of at least two groups"),
        (["length", "maximum=["], "'maximum=[', line 1: not YAML"),
    ],
)
def test_bad_input_of_the_command(call: Call, words: list[str], said: str) -> None:
    done = call("check", *words)
    assert done.code == 2, done.out
    assert said in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        (["foreign_rewards:tagged"], 10),
        (["foreign_rewards:judged"], 13),  # with the ladder of texts, since it compares with the target
        (["foreign_rewards:compute_score_batch"], 13),  # whose other columns it does not read
        (["foreign_rewards:get_overlong", "max_completion_len=2", "soft_punish_cache=4"], 10),
        (["foreign_rewards:near", "--prompts", "p.jsonl"], 10),
        (["foreign_rewards:compute_score", "--prompts", "p.jsonl"], 13),
        (["foreign_rewards:file_size", "--prompts", "p.jsonl"], 10),
        (["exact-match", "--prompts", "p.jsonl"], 16),
    ],
)
@pytest.mark.filterwarnings("always:The built-in samples have no column:UserWarning")
def test_the_command_on_functions_of_other_trainers_and_on_prompts(
    call: Call, tmp_path: Path, words: list[str], passes: int
) -> None:
    columns = {"data_source": "sums", "extra_info": {"split": "train"}, "difficulty": 1, "least": 0}
    rows = [{"prompt": f"1+{n}", "target": str(1 + n), **columns} for n in range(5)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = call("check", *words)
    assert (done.code, f"all {passes} checks passed" in done.out) == (0, True), done.out
    assert ("no column data_sources" in done.out) == ("compute_score_batch" in words[0])


def test_a_module_that_is_not_there_and_one_that_fails(call: Call, tmp_path: Path) -> None:
    (tmp_path / "my_policy.py").write_text("raise ValueError('not to be read')")
    done = call("check", "my_policie:MyPolicy")
    assert done.code == 2
    assert "there is no module 'my_policie'. Check the spelling" in done.err
    done = call("check", "my_policy:MyPolicy")
    assert done.code == 2
    assert "The component 'my_policy:MyPolicy' cannot be imported from 'my_policy': ValueError: not to be" in done.err


def test_a_class_with_all_methods_is_a_policy() -> None:
    assert component.kind_of("broken_components:Tokens", None) == "policy"
    assert component.kind_of("broken_components:NoSubclass", None) == "policy"
    assert component.kind_of("broken_components:good", None) == "reward"
    assert component.kind_of("grpokit.builtin.kl_gate:KLGate", None) == "modifier"
    assert component.kind_of("grpokit.objectives:GSPO", None) == "objective"


def test_what_was_not_checked_for_one_reason_is_one_row(call: Call) -> None:
    done = call("check", "tiny_rewards:always_stops")
    assert done.code == 1
    assert re.search(r"not checked +numbers failed", done.out), done.out
    assert done.out.count("StopIteration") == 1
    assert done.out.count("numbers failed") == 2  # the row and the ladder
    assert "ladder: not measured, since numbers failed" in done.out
    done = call("check", "length", "maximum=5")
    assert re.search(
        r"^ladder-letters, ladder-blank, +not checked +compares no built-in text with *\n"
        r"ladder-extra-text +the target *\n",
        done.out,
        re.MULTILINE,
    ), done.out


def test_a_placement_has_no_checks(site: Path, call: Call) -> None:
    distribution(site, "far", "far", announcing("Placement", "api=1, name='far-away'"))
    assert "'far-away' is a placement of rewards, and those have no checks" in call("check", "far-away").err


def test_a_terminal_shows_which_check_runs(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()

    def console(*, stderr: bool = False) -> Console:
        return Console(file=screen if stderr else None, force_terminal=stderr, width=160, highlight=False)

    monkeypatch.setattr(check_command, "console", console)
    done = call("check", "length", "maximum=5")
    assert "of 15: " in screen.getvalue()
    assert "of 15: " not in done.out  # the table stays as it is
    assert done.out.startswith("check ")


WARNS = """
import warnings
import numpy as np

def reward(samples):
    warnings.warn("soon gone", DeprecationWarning)
    warnings.warn("a slow path")
    return [float(len(s.output) + 0 * np.nan_to_num(np.float64(0) / np.float64(0))) if isinstance(s.output, str)
            else float("nan") for s in samples]
"""


def test_warnings_stand_below_the_table(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warns.py").write_text(WARNS)
    monkeypatch.setenv("COLUMNS", "160")
    done = call("check", "warns:reward")
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("check ")
    assert done.out.count("warning: UserWarning: a slow path") == 1
    assert done.out.count("warning: RuntimeWarning: invalid value") == 1
    assert "soon gone" not in done.out
    assert re.search(r"degenerate-texts +failed +Expected NaN", done.out), done.out


def test_the_results_as_json_and_as_a_badge(call: Call) -> None:
    done = call("check", "group", "--json")
    facts = json.loads(done.out)
    assert (done.code, facts["kind"], facts["package"], facts["passed"]) == (0, "advantage", "grpokit", True)
    assert facts["grpokit"] == facts["version"] == importlib.metadata.version("grpokit")
    assert {"name": "better", "state": "ok", "message": ""} in facts["checks"]
    done = call("check", "broken_components:draws", "--json")
    facts = json.loads(done.out)
    assert (done.code, facts["package"], facts["passed"]) == (1, "", False)
    number = len(list(advantage_checks(group))) + 1
    badge = (
        f"![grpokit: {number} checks passed](https://img.shields.io/badge/grpokit-{number}_checks_passed-brightgreen)"
    )
    assert call("check", "group", "--badge").out == f"{badge}\n"
    done = call("check", "broken_components:draws", "--badge")
    assert (done.code, done.out[:21]) == (1, "![grpokit: 1 checks f")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["grpokit.advantages:group", "--kind", "advantage"], "all 9 checks passed"),
        (["grpokit.objectives:GSPO"], "all 7 checks passed"),
        (["fixture_good.greet:greet", "--kind", "command"], "all 1 checks passed"),
        (["echo_world:Echo", "--kind", "world"], "checks passed"),
        (["toy-lm", "temperature=0"], "temperature must be"),  # of the policy, not of the preset
    ],
)
def test_kinds_that_are_asked_for(call: Call, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests/fixture_plugins/good"))
    done = call("check", *words)
    assert said in done.out + done.err, done.out + done.err
