"""Configs: every mistake gets one message with the place, what was expected, what came, and the nearest name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from grpokit import ConfigError, registry
from grpokit.config import mistakes, presets, synonyms
from grpokit.config.schema import RunConfig, load_config, parse, to_dict
from grpokit.config.yaml_source import read_yaml, to_yaml

POLICY, DATA, REWARDS = "policy: {use: p}\n", "data: {prompts: a.txt}\n", "rewards: [{use: r}]\n"
GOOD = POLICY + DATA + REWARDS  # three lines


def refused(text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "c.yaml", overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_defaults() -> None:
    config = parse(GOOD, "c.yaml")
    assert (config.seed, config.trainer.steps, config.trainer.group_size) == (42, 200, 8)
    assert (config.trainer.learning_rate, config.trainer.advantage, config.trainer.objective) == (5e-6, "group", "grpo")
    assert (config.rewards[0].weight, config.rewards[0].on_error, config.rewards[0].name) == (1.0, "stop", None)


def test_a_components_other_keys_go_to_its_factory() -> None:
    config = parse(
        "policy: {use: p, vocab: 9, sizes: [1, 2]}\ndata: {use: 'm:f', count: 3}\n"
        "rewards:\n  - {use: r, weight: 0.5, name: n, on_error: skip, engine: {a: 1}}\n"
        "trainer: {advantage: {use: gdpo, eps: 0.1}}",
        "c.yaml",
    )
    assert config.policy.params == {"vocab": 9, "sizes": [1, 2]}
    assert config.data.model_extra == {"count": 3}
    assert config.rewards[0].params == {"engine": {"a": 1}}
    assert not isinstance(config.trainer.advantage, str)
    assert config.trainer.advantage.params == {"eps": 0.1}


MISTAKES = {
    "unknown key": (
        GOOD + "trainer:\n  steps: 1\n  stepz: 3\n",
        6,
        ["unknown key 'trainer.stepz'", "did you mean 'steps'?", "Known keys: steps, prompts_per_step"],
    ),
    "unknown top key": (
        GOOD + "trainr: {}\n",
        4,
        ["unknown key 'trainr'", "did you mean 'trainer'?", "Known keys: seed, policy, data"],
    ),
    "unknown run key": (GOOD + "run: {savee_every: 1}\n", 4, ["'run.savee_every'", "did you mean 'save_every'?"]),
    "unknown data key": (
        POLICY + "data:\n  prompts: a.txt\n  target: b\n" + REWARDS,
        2,
        ["unknown key 'target'", "did you mean 'targets'?"],
    ),
    "a text for a number": (
        GOOD + "trainer: {steps: many}\n",
        4,
        ["trainer.steps: expected a whole number, got 'many'."],
    ),
    "a list for a number": (
        GOOD + "trainer:\n  learning_rate: [1]\n",
        5,
        ["trainer.learning_rate: expected a number, got a list of 1."],
    ),
    "a text for a policy": (
        "policy: toy\n" + DATA + REWARDS,
        1,
        ["policy: expected a group of keys, got 'toy' (a component is named by `use`: {use: toy})."],
    ),
    "a text for a reward": (
        POLICY + DATA + "rewards:\n  - {use: r}\n  - r\n",
        5,
        ["rewards.1: expected a group of keys, got 'r' (a component is named by `use`: {use: r})."],
    ),
    "a group of one": (
        GOOD + "trainer:\n  group_size: 1\n",
        5,
        ["trainer.group_size: expected at least 2, got 1."],
    ),
    "a rate of zero": (GOOD + "trainer: {learning_rate: 0}\n", 4, ["learning_rate: expected more than 0, got 0"]),
    "a negative interval": (
        GOOD + "eval: {every: -1}\n",
        4,
        ["eval.every: expected at least 0, got -1"],
    ),
    "an infinite weight": (
        POLICY + DATA + "rewards: [{use: r, weight: .inf}]\n",
        3,
        ["rewards.0.weight: expected a finite number, got inf"],
    ),
    "NaN": (GOOD + "trainer: {kl_coef: .nan}\n", 4, ["trainer.kl_coef", "got nan"]),
    "an unknown choice": (
        GOOD + "trainer: {kl: k4}\n",
        4,
        ["trainer.kl", "'k1', 'k2', 'k3', 'gaussian' or 'velocity'", "got 'k4'"],
    ),
    "an unknown on_error": (
        POLICY + DATA + "rewards: [{use: r, on_error: ignore}]\n",
        3,
        ["'stop' or 'skip'", "got 'ignore'"],
    ),
    "no policy": (DATA + REWARDS, 1, ["the key 'policy' is missing"]),
    "no use": ("policy: {vocab: 3}\n" + DATA + REWARDS, 1, ["the key 'policy.use' is missing"]),
    "no use in a reward": (POLICY + DATA + "rewards:\n  - use: r\n  - weight: 2\n", 5, ["'rewards.1.use' is missing"]),
    "a repeated key": (GOOD + "seed: 1\nseed: 2\n", 5, ["the key 'seed' appears twice"]),
    "a repeated key inside": (GOOD + "trainer:\n  steps: 1\n  steps: 2\n", 6, ["the key 'steps' appears twice"]),
    "an open bracket": (GOOD + "trainer: {steps: 3\nrun: 4\n", 5, ["not YAML", "expected ',' or '}'"]),
    "a tab": (GOOD + "trainer:\n\tsteps: 3\n", 5, ["not YAML", "'\\t'"]),
    "two colons": (GOOD + "run: a: b\n", 4, ["not YAML", "not allowed here"]),
    "an unknown alias": (GOOD + "run: *settings\n", 4, ["not YAML", "undefined alias 'settings'"]),
    "a Python object": (GOOD + "run: !!python/object:os.system {}\n", 4, ["not YAML", "python/object"]),
    "a tag that says otherwise": (GOOD + "seed: !!int many\n", 4, ["not YAML", "'many'"]),
    "a number too long": (GOOD + "seed: " + "9" * 5000 + "\n", 4, ["not YAML", "4300 digits"]),
    "a template's braces": (GOOD + "run: {dir: {{ out }}}\n", 4, ["not YAML", "expected a text key"]),
    "two sources of prompts": (
        POLICY + "data: {prompts: a.txt, dataset: b}\n" + REWARDS,
        2,
        ["exactly one of prompts, dataset and use", "got prompts and dataset"],
    ),
    "no source of prompts": (POLICY + "data: {split: b}\n" + REWARDS, 2, ["exactly one of prompts", "got none"]),
    "two kinds of held-out prompts": (
        GOOD + "eval: {prompts: b, fraction: 0.1}\n",
        4,
        ["one kind of held-out prompts", "got prompts and fraction", "to null to remove it"],
    ),
    "targets of a dataset": (
        POLICY + "data: {dataset: a, targets: t}\n" + REWARDS,
        2,
        ["'targets' goes with 'prompts'", "not set"],
    ),
    "columns of a function": (
        POLICY + "data: {use: a, columns: {prompt: t}}\n" + REWARDS,
        2,
        ["do not go with use"],
    ),
    "targets of no held-out prompts": (
        GOOD + "eval: {targets: t}\n",
        4,
        ["eval: 'targets' goes with 'prompts'"],
    ),
    "a held-out split of no dataset": (GOOD + "eval: {split: test}\n", 1, ["eval.split needs data.dataset"]),
}


@pytest.mark.parametrize(("text", "line", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(text: str, line: int, words: list[str]) -> None:
    message = refused(text)
    assert message.startswith(f"c.yaml, line {line}: ")
    for word in words:
        assert word in message
    assert "?." not in message


@pytest.mark.parametrize(
    ("text", "got"),
    [("", "an empty file"), ("# nothing\n", "an empty file"), ("- a\n", "a list of 1"), ("hello", "'hello'")],
)
def test_not_a_mapping(text: str, got: str) -> None:
    assert refused(text) == f"c.yaml: expected keys such as policy, data and rewards, got {got}."


def test_every_mistake_is_listed_at_once() -> None:
    lines = refused(GOOD + "trainer: {steps: 0}\nrun:\n  dirr: x\n").splitlines()
    assert [line.split(": ")[0] for line in lines] == ["c.yaml, line 4", "c.yaml, line 6"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("5e-6", 5e-6),
        ("5E-6", 5e-6),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("2.", 2.0),
        ("1", 1),
        ("+1.5e-2", 0.015),
        ("010", 10.0),  # 8 in YAML 1.1
        ("0x10", 16.0),
        ("0o10", 8.0),
    ],
)
def test_numbers(written: str, read: float) -> None:
    value = parse(GOOD + f"trainer: {{learning_rate: {written}}}", "c.yaml").trainer.learning_rate
    assert value == read
    assert isinstance(value, float)


@pytest.mark.parametrize(("written", "read"), [("010", 10), ("1e3", 1000), ("2.0", 2), ("0x10", 16), ("0o17", 15)])
def test_whole_numbers(written: str, read: int) -> None:
    value = parse(GOOD + f"trainer: {{steps: {written}}}", "c.yaml").trainer.steps
    assert (value, type(value)) == (read, int)
    assert parse(GOOD, "c.yaml", [f"trainer.steps={written}"]).trainer.steps == read


@pytest.mark.parametrize("written", ["1_000", "1:30", "2026-11-21", "'10'", "2.5", "true", "5k", "0b11", "1,000"])
def test_these_are_no_whole_numbers(written: str) -> None:
    message = refused(
        GOOD + f"trainer:\n  steps: {written}" if written != "1,000" else GOOD + "trainer:\n  steps: 1,000"
    )
    assert message.startswith("c.yaml, line 5: trainer.steps: expected a whole number, got ")


@pytest.mark.parametrize(
    "word",
    ["no", "off", "yes", "on", "NO", "y", "n", "1:e3", "5e", "e5", "-", "1_000", "1:30", "2026-11-21", "0b1", "="],
)
def test_these_are_texts(word: str) -> None:
    assert parse(GOOD + f"run: {{dir: {word}}}", "c.yaml").run.dir == word
    assert parse(POLICY + DATA + f"rewards: [{{use: r, key: {word}}}]", "c.yaml").rewards[0].params == {"key": word}


def test_mixed_precision_no_needs_no_quotes() -> None:
    assert parse(GOOD + "trainer: {mixed_precision: no}", "c.yaml").trainer.mixed_precision == "no"


def test_true_and_false() -> None:
    config = parse("policy: {use: p, a: true, b: False, c: null}\n" + DATA + REWARDS, "c.yaml")
    assert config.policy.params == {"a": True, "b": False, "c": None}


# --- files --------------------------------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml does not exist \(looked in "):
        load_config(tmp_path / "no.yaml")


def test_a_folder_and_bytes_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; expected a config file"):
        load_config(tmp_path)
    (tmp_path / "c.yaml").write_bytes(b"policy: \xff\xfe")
    with pytest.raises(ConfigError, match=r"c\.yaml cannot be read as UTF-8 text"):
        load_config(tmp_path / "c.yaml")


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("\ufeff" + GOOD, encoding="utf-8")
    assert load_config(tmp_path / "c.yaml").policy.use == "p"


# --- overrides ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("trainer.steps=5", ["trainer", "steps"], 5),
        ("trainer.learning_rate=1e-4", ["trainer", "learning_rate"], 1e-4),
        ("rewards.0.weight=2", ["rewards", 0, "weight"], 2.0),
        ("rewards.0.name=a=b", ["rewards", 0, "name"], "a=b"),
        ("rewards.0.pattern=x", ["rewards", 0, "pattern"], "x"),
        ("policy.sizes=[1, 2]", ["policy", "sizes"], [1, 2]),
        ("policy.deep.er=1", ["policy", "deep", "er"], 1),
        ("trackers.use=[tensorboard]", ["trackers", "use"], ["tensorboard"]),
        ("run.dir=no", ["run", "dir"], "no"),
        ("trainer.max_grad_norm=null", ["trainer", "max_grad_norm"], None),
    ],
)
def test_override(override: str, path: list[str | int], value: object) -> None:
    here = parse(GOOD, "c.yaml", [override]).model_dump()
    for part in path:
        here = here[part]  # type: ignore[index]
    assert here == value
    assert type(here) is type(value)


def test_the_last_override_wins() -> None:
    assert parse(GOOD + "seed: 1", "c.yaml", ["seed=2", "seed=3"]).seed == 3


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.steps", ["not of the form key=value"]),
        ("=5", ["not of the form key=value"]),
        ("--steps", ["not of the form key=value"]),
        ("trainer.steps=[", ["not YAML"]),
        ("run.dir={{x}}", ["not YAML"]),
        ("trainer.steps=", ["trainer.steps: expected a whole number, got nothing (null)"]),
        (
            "trainer.correction={hows: mask}",
            ["unknown key 'trainer.correction.hows'", "Known keys: how, per, low, high"],
        ),
        ("trainer.correction=mask", ["trainer.correction: expected a group of keys, got 'mask' (as in {how: mask})"]),
        ("trainer.correction.high=0.5", ["correction needs low <= 1 <= high"]),
        ("trainer.stepz=1", ["unknown key 'trainer.stepz'", "did you mean 'steps'?"]),
        ("trainr.steps=1", ["unknown key 'trainr'", "did you mean 'trainer'?"]),
        ("trainer.steps=0", ["trainer.steps: expected at least 1, got 0"]),
        ("rewards.1.weight=2", ["rewards is a list of 1", "got '1'"]),
        ("rewards.-1.weight=2", ["rewards is a list of 1", "'-1'"]),
        ("rewards.first.weight=2", ["rewards is a list of 1", "'first'"]),
        ("policy.use.name=2", ["policy.use is a single value, not a group of keys"]),
        ("policy.a=&x [*x]", ["not YAML", "contains itself"]),
        ("trainer..steps=3", ["not of the form key=value"]),
        ("rewards." + "9" * 5000 + ".weight=1", ["got '999"]),
    ],
)
def test_wrong_override(override: str, words: list[str]) -> None:
    message = refused(GOOD, override)
    assert f"override {override!r}"[:80] in message or "c.yaml" in message
    for word in words:
        assert word in message


def test_an_override_is_named_as_the_place_of_its_mistake() -> None:
    assert refused(GOOD + "trainer:\n  steps: 9", "trainer.steps=none").startswith("override 'trainer.steps=none': ")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("polic.use=x", "override 'polic.use=x': unknown key 'polic'"),
        ("data.dataset=x", "c.yaml, line 2, with override 'data.dataset=x': data: give exactly one of prompts,"),
        ("rewards.0.every=2", "c.yaml, line 3, with override 'rewards.0.every=2': rewards.0: every: 2 needs"),
    ],
)
def test_a_clash_with_an_override_names_the_override(override: str, message: str) -> None:
    assert refused(GOOD, override).startswith(message)


def test_a_clash_of_two_overrides_names_both() -> None:
    first, second = "trainer.prompts_per_step=3", "trainer.minibatches=2"
    assert refused(GOOD, first, second).startswith(f"override {first!r}, with override {second!r}: trainer: ")


def test_how_to_replace_a_source_of_prompts() -> None:
    text = POLICY + "data: {use: 'm:f', count: 3}\n" + REWARDS
    assert refused(text, "data.prompts=a.txt").endswith("'data={prompts: FILE}' replaces them all.")
    assert parse(text, "c.yaml", ["data={prompts: a.txt}"]).data.prompts == "a.txt"


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("trainer.lr=1", "(did you mean 'trainer.learning_rate'?)"),
        ("lr=1", "(did you mean 'trainer.learning_rate'?)"),
        ("learning_rate=1", "(did you mean 'trainer.learning_rate'?)"),
        ("trainer.save_every=1", "(did you mean 'run.save_every'?)"),
        ("trainer.batch_size=1", "(did you mean 'trainer.micro_batch_size' or 'trainer.prompts_per_step'?)"),
        ("trainer.per-device-train-batch-size=1", "(did you mean 'trainer.micro_batch_size'?)"),
        ("gradient_accumulation_steps=4", "(gradients are accumulated over micro-batches: set trainer.micro_ba"),
        ("generation_batch_size=8", "(did you mean 'trainer.prompts_per_step' or 'trainer.group_size'?)"),
        ("model=org/name", "(it is a parameter of the policy, if the policy has one: set policy.model)"),
        ("trainer.num_image_per_prompt=8", "(did you mean 'trainer.group_size'?)"),
        ("num_batches_per_epoch=8", "(did you mean 'trainer.prompts_per_step'?)"),
        ("trainer.kl_beta=0.1", "(did you mean 'trainer.kl_coef'?)"),
        ("trainer.clip_range_gt=0.1", "(did you mean 'trainer.clip_range_high'?)"),
        ("num_steps=10", "(did you mean 'trainer.steps'?)"),
        ("trainer.timestep_fraction=0.6", "(it is a parameter of the policy, if the policy has one: set policy.windo"),
    ],
)
def test_a_key_of_another_group_trainer_or_version_names_ours(override: str, hint: str) -> None:
    assert f"unknown key '{override.partition('=')[0]}' {hint}" in refused(GOOD, override)


def test_the_other_trainers_keys_lead_to_keys_that_exist() -> None:
    groups = {key: getattr(field.annotation, "model_fields", ()) for key, field in RunConfig.model_fields.items()}
    known = {f"{group}.{name}" for group, names in groups.items() for name in names}
    known |= {*RunConfig.model_fields, "rewards.0.weight"}
    for name, keys in synonyms.KEYS.items():
        assert known >= set(keys)
        assert not known & {name, *(f"{key.partition('.')[0]}.{name}" for key in keys)}, "it is a key of ours"
    named = set(re.findall(r"\b(?:trainer|run|data)\.\w+", " ".join(synonyms.ADVICE.values())))
    assert known >= named


def test_every_name_of_trl_that_the_page_explains_leads_somewhere() -> None:
    page = (Path(__file__).parents[2] / "docs/from-trl.md").read_text()
    table = page[page.index("| TRL | grpokit | note |") : page.index("## Reward functions")]
    cells = [re.sub(r"\(.*?\)|:.*", "", row.split(" | ")[0]) for row in table.splitlines()]
    names = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert len(names) > 60
    assert [name for name in names if not mistakes.key_for(name, RunConfig)] == []


def test_what_an_override_replaces_leaves_no_place_behind() -> None:
    override = "rewards=[{use: length, weight: 0, every: 0}]"
    assert refused(GOOD, override).startswith(f"override {override!r}: ")
    override = "rewards=[{use: length}]"
    assert parse(GOOD, "c.yaml", [override]).place("rewards", 0) == f"override {override!r}: rewards.0: "


# --- schema, presets, round trip ----------------------------------------------------------------------------------


def test_schema_is_valid_and_agrees() -> None:
    from jsonschema import Draft202012Validator  # whose grammars take seconds

    found = RunConfig.model_json_schema()
    Draft202012Validator.check_schema(found)
    assert list(found["properties"]) == list(RunConfig.model_fields)
    assert found["required"] == ["policy", "data", "rewards"]
    judge = Draft202012Validator(found)
    good = "policy: {use: toy-flow, steps: 9}\ndata: {prompts: a}\nrewards: [{use: ring, weight: 2}, {use: 'm:f'}]\n"
    assert judge.is_valid(yaml.safe_load(good + "trainer: {objective: {use: cispo, kl_coef: 0.1}, advantage: rloo}"))
    for wrong in ("trainr: {}", "trainer: {stepz: 1}", "trainer: {group_size: 1}", "seed: many", "rewards: [length]"):
        assert not judge.is_valid(yaml.safe_load(good + wrong)), wrong
    keys = found["$defs"]["TrainerConfig"]["properties"]
    assert all(keys[name]["description"] for name in ("learning_rate", "clip_range", "kl_coef", "advantage"))
    for _, spec in registry.installed("preset"):
        data, _ = read_yaml(presets.preset_text(spec), spec.name)
        assert judge.is_valid(data), spec.name


def test_unknown_preset() -> None:
    with pytest.raises(ConfigError, match=r"There is no preset called 'toy-glyf'.*Known: .*ends in \.yaml"):
        presets.read_config("toy-glyf")


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        POLICY
        + DATA
        + "rewards: [{use: r, weight: 0.25, key: no}]\ntrainer: {learning_rate: 1e-5, max_grad_norm: null}",
        "policy: {use: 'm:f', a: {b: [1, 2.5]}}\ndata: {use: 'm:g', n: 3}\nrewards: [{use: r, name: 'on'}]\n"
        "trainer: {advantage: {use: gdpo, clip: 5}, clip_range: 0.1, kl: k3, kl_coef: 0.05}",
        POLICY + DATA + "rewards: [{use: r, name: '5e-6', a: '010', b: '0o17', c: 1_000, d: '1e3', e: '0x1'}]",
        POLICY + "data: {dataset: d, columns: {prompt: text}}\neval: {split: test}\n" + REWARDS,
    ],
)
def test_the_resolved_config_reads_back_the_same(text: str) -> None:
    """As `grpokit.runs.train` writes it into the run folder."""
    config = parse(text, "c.yaml")
    written = to_yaml(to_dict(config))
    again = parse(written, "config.yaml")
    assert isinstance(again, RunConfig)
    assert again.model_dump() == config.model_dump()
    assert to_yaml(to_dict(again)) == written


def test_keys_of_a_replaced_component_go_with_it(recwarn: pytest.WarningsRecorder) -> None:
    text = """
    policy: {use: toy-lm}
    data: {use: "grpokit_toy.lm:sum_prompts"}
    rewards: [{use: length, low: 1, high: 9, weight: 2.0}]
    trainer: {objective: {use: sapo, tau_pos: 2.0}, clip_range: 0.1, kl_coef: 0.1}
    """
    config = parse(text, "a.yaml", ["trainer.objective.use=dppo", "rewards.0.use=numeric-answer"])
    assert config.trainer.flat_objective == {"kl_coef": 0.1}
    assert (config.trainer.objective.params, config.rewards[0].params) == ({}, {})
    assert config.rewards[0].weight == 2.0
    said = [str(warning.message) for warning in recwarn]
    assert [key for key in ("tau_pos", "clip_range", "low", "high") if any(f".{key}," in line for line in said)] == [
        "tau_pos",
        "clip_range",
        "low",
        "high",
    ]
    own = parse(text, "a.yaml", ["trainer.objective=dppo", "trainer.clip_range=0.3"])  # the user's own key stays
    assert own.trainer.flat_objective == {"clip_range": 0.3, "kl_coef": 0.1}
    assert parse(text, "a.yaml", ["trainer.steps=3"]).trainer.flat_objective["clip_range"] == 0.1
    again = parse(text, "a.yaml", ["trainer.objective=dppo", "trainer={steps: 3}"])  # a later override replaces both
    assert again.trainer.objective == "grpo"
