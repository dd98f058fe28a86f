"""Bad input through the real command line: one message, the right exit code, and nothing written.

Every entry of the table is a kind of mistake. It says what is in the folder beside a good config, what is typed,
and what the message must contain: what was expected, what came, what to do.
"""

from __future__ import annotations

import io
import json
import re
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from accelerate.utils import LoggerType
from PIL import Image

from grpokit import cli
from grpokit.config import schema

POLICY = "policy: {use: 'tiny_policies:TinyTokens'}\n"
DATA = "data: {prompts: prompts.txt}\n"
REWARDS = "rewards: [{use: length, maximum: 3}]\n"
TRAINER = "trainer: {steps: 1, prompts_per_step: 2, group_size: 2, device: cpu}\n"
RUN = "run: {dir: out, threads: 1}\n"
GOOD = POLICY + DATA + REWARDS + TRAINER + RUN  # five lines


OWN = """from grpokit import DataError


class Own(DataError):
    def __init__(self, file, line):
        super().__init__(f"{file}, line {line}: no number")


"""


@dataclass(frozen=True)
class Bad:
    """A mistake.

    Attributes:
        typed: the words behind `grpokit`.
        says: what the message must contain.
        files: what is in the folder, beside a good c.yaml with its prompts.txt.
        code: the exit code.
        leaves: a run has begun, so its folder stays.
        usage: found by the parser of the command line, whose messages begin with the usage.
    """

    typed: Sequence[str]
    says: Sequence[str]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    code: int = 2
    leaves: bool = False
    usage: bool = False


def written(text: str | bytes, *says: str) -> Bad:
    """A config file."""
    return Bad(["train", "c.yaml"], says, {"c.yaml": text})


def change(override: str, *says: str, files: Mapping[str, str | bytes] | None = None, leaves: bool = False) -> Bad:
    """An override of the good config."""
    return Bad(["train", "c.yaml", override], says, files or {}, leaves=leaves)


def part(old: str, new: str, *says: str) -> Bad:
    """One line of the good config in other words."""
    return written(GOOD.replace(old, new), *says)


def prompts(content: str | bytes, *says: str, files: Mapping[str, str | bytes] | None = None) -> Bad:
    """A prompts file, with a folder of targets where `files` has one."""
    files = {"p.txt": content, **(files or {})}
    targets = ", targets: t" if any(name.startswith("t/") for name in files) else ""
    return change(f"data={{prompts: p.txt{targets}}}", *says, files=files)


def jsonl(line: str, *says: str, files: Mapping[str, str | bytes] | None = None) -> Bad:
    """The second line of a JSONL file."""
    return change("data={prompts: p.jsonl}", *says, files={"p.jsonl": f'{{"prompt": "1"}}\n{line}\n', **(files or {})})


def code(use: str, body: str, *says: str, **options: str) -> Bad:
    """A module beside the config; `use` is an override that names something in it."""
    return change(use, *says, files={f"{re.findall(r'(bad_[a-z_]+):', use)[0]}.py": body})


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG file of grey pixels that has the size written down and, behind that, only `data`."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def noise() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(file, "PNG")
    return file.getvalue()


PICTURE = noise()

CONFIG_FILE = {
    "a config that is not there": Bad(["train", "no.yaml"], ["The config file no.yaml does not exist (looked in /"]),
    "a folder that is called like a config": Bad(
        ["train", "d.yaml"], ["d.yaml is a folder; expected a config file"], {"d.yaml/x": ""}
    ),
    "a folder in place of a config": Bad(
        ["train", "d"],
        ["d is a folder without a config.yaml", "expected a preset, a config file or a run folder"],
        {"d/x": ""},
    ),
    "a config of bytes": written(b"\x89PNG\r\n\x1a\n\xff", "c.yaml cannot be read as UTF-8 text"),
    "a config with a NUL byte": written(GOOD + "seed: \0", "c.yaml: not YAML", "#x0000"),
    "an empty config": written("", "c.yaml: expected keys such as policy, data and rewards, got an empty file"),
    "a config of comments": written("# steps: 3\n", "expected keys such as policy", "got an empty file"),
    "a config that is a list": written("- policy\n- data\n", "expected keys such as policy", "got a list of 2"),
    "a config that is a text": written("policy", "expected keys such as policy", "got 'policy'"),
    "two documents in a config": written(
        GOOD + "---\n" + GOOD, "line 6: not YAML: expected a single document in the stream, but f"
    ),
    "a tab in a config": written(GOOD + "data:\n\tx: 1\n", "c.yaml, line 7: not YAML", r"'\t'"),
    "a bracket that stays open": written(GOOD + "run: [", "c.yaml, line 6: not YAML", "expected the node content"),
    "a key twice": written(GOOD + "seed: 1\nseed: 2\n", "c.yaml, line 7: not YAML: the key 'seed' appears twice"),
    "an anchor inside itself": written(GOOD + "x: &a [*a]\n", "not YAML", "contains itself"),
    "an alias of nothing": written(GOOD + "x: *a\n", "line 6: not YAML", "undefined alias 'a'"),
    "a Python object": written(GOOD + "x: !!python/name:os.system\n", "line 6: not YAML", "python/name"),
    "a date by a tag": written(GOOD + "seed: !!timestamp 2026-99-99\n", "line 6: not YAML", "timestamp"),
    "a config ten thousand levels deep": written(GOOD + "x: " + "[" * 10_000, "not YAML", "nested too deeply"),
    "a list as a key": written(GOOD + "? [a]\n: 1\n", "line 6: not YAML: expected a text key"),
    "a number as a key": written(GOOD + "1: 2\n", "c.yaml, line 6: 1: expected a text as the key, got 1"),
    "a name longer than any file's": Bad(["train", "x" * 300], ["There is no preset called 'xxx"]),
}

KEYS = {
    "an unknown key": written(GOOD + "trainr: {}", "line 6: unknown key 'trainr' (did you mean 'trainer'?). Known"),
    "an unknown key of the trainer": part("steps: 1", "stepz: 1", "'trainer.stepz' (did you mean 'steps'?)"),
    "an unknown key of the data": part("prompts: ", "promts: ", "line 2: data: give exactly one of prompts, dataset"),
    "a key that goes with another source": part(
        "{prompts: prompts.txt", "{dataset: p, targets: t", "'targets' goes with 'prompts', which is not set"
    ),
    "an unknown key of the run": part("dir: out", "dirr: out", "unknown key 'run.dirr' (did you mean 'dir'?)"),
    "no policy": part(POLICY, "", "c.yaml, line 1: the key 'policy' is missing"),
    "a policy without use": part("use: 'tiny_policies:TinyTokens'", "vocab: 3", "line 1: the key 'policy.use' is mis"),
    "a policy that is a text": part(
        POLICY, "policy: toy-lm\n", "line 1: policy: expected a group of keys, got 'toy-lm'", "{use: toy-lm}"
    ),
    "a policy that is null": part(POLICY, "policy:\n", "policy: expected a group of keys, got nothing (null)"),
    "a policy of no name": part("'tiny_policies:TinyTokens'", "''", "policy.use: expected a text that is not empty"),
    "data that is a text": part(DATA, "data: prompts.txt\n", "line 2: data: expected a group of keys", "{prompts: ..."),
    "two sources of data": part(DATA, "data: {prompts: a, dataset: b}\n", "exactly one of", "got prompts and dataset"),
    "rewards that are no list": part(
        REWARDS, "rewards: {use: length}\n", "line 3: rewards: expected a list, got keys (use) (as in [{use: my-rew"
    ),
    "no reward": part(
        REWARDS, "rewards: []\n", "line 3: rewards: there is no reward, and objective 'grpo' learns from"
    ),
    "monitors alone": part(
        REWARDS, "rewards: [{use: length, weight: 0}]\n", "line 3: rewards: every reward has weight 0, so all are"
    ),
    "a reward that is a text": part(
        REWARDS, "rewards: [length]\n", "rewards.0: expected a group of keys, got 'length'"
    ),
    "a trainer that is a list": part(
        TRAINER, "trainer: [1]\n", "line 4: trainer: expected a group of keys, got a list"
    ),
    "an advantage that is a number": change(
        "trainer.advantage=5", "trainer.advantage: expected a text or keys with `use`, got 5."
    ),
    "an advantage without use": change("trainer.advantage={clip: 5}", "the key 'trainer.advantage.use' is missing"),
}

VALUES = {
    "a text for a number": part(
        "steps: 1", "steps: many", "line 4: trainer.steps: expected a whole number, got 'many'"
    ),
    "a number in quotes": part("steps: 1", "steps: '10'", "got '10' (a text: write numbers as 10, 1.5 or 5e-6"),
    "a number with underscores": part(
        "steps: 1", "steps: 1_000", "got '1_000'", "without quotes, units or underscores"
    ),
    "a number with a unit": part("steps: 1", "steps: 5k", "expected a whole number, got '5k'", "units"),
    "base sixty": part("steps: 1", "steps: 1:30", "expected a whole number, got '1:30'"),
    "a date for a number": part("steps: 1", "steps: 2026-11-21", "expected a whole number, got '2026-11-21'"),
    "true for a number": part("steps: 1", "steps: true", "trainer.steps: expected a whole number, got true"),
    "half a step": part("steps: 1", "steps: 2.5", "trainer.steps: expected a whole number, got 2.5"),
    "a list for a number": part("steps: 1", "steps: [1]", "expected a whole number, got a list of 1"),
    "null for a number": part("steps: 1", "steps: null", "expected a whole number, got nothing (null)"),
    "no step": part("steps: 1", "steps: 0", "trainer.steps: expected at least 1, got 0"),
    "a step count beyond reason": part("steps: 1", "steps: 1e12", "trainer.steps: expected at most 1,000,000,000, got"),
    "more digits than Python reads": part("steps: 1", "steps: " + "9" * 5000, "4300 digits"),
    "a group of one": part("group_size: 2", "group_size: 1", "trainer.group_size: expected at least 2, got 1"),
    "a learning rate of zero": change("trainer.learning_rate=0", "learning_rate: expected more than 0, got 0"),
    "a learning rate that is not a number": change("trainer.learning_rate=.nan", "expected a finite number, got nan"),
    "an infinite weight": change("rewards.0.weight=.inf", "rewards.0.weight: expected a finite number, got inf"),
    "a weight that is true": change("rewards.0.weight=true", "rewards.0.weight: expected a number, got true"),
    "a seed beyond 64 bits": change("seed=1e20", "seed: expected less than 9,223,372,036,854,775,808, got 1"),
    "a kl that is none": change("trainer.kl=k4", "expected 'k1', 'k2', 'k3', 'gaussian' or 'velocity', got 'k4'."),
    "precision by another name": change("trainer.mixed_precision=bf61", "'bf16'", "got 'bf61' (did you mean 'bf16'?)"),
    "a tracker misspelt": change(
        "trackers.use=[tensorbored]",
        "trackers.use.0: expected 'aim', ",
        "'wandb', got 'tensorbored' (did you mean 'tensorboard'?)",
    ),
    "trackers that are no list": change("trackers.use=wandb", "trackers.use: expected a list, got 'wandb'"),
    "a run folder that is a number": change("run.dir=5", "run.dir: expected a text, got 5 (put it in quotes)"),
    "the current folder as the run's": change("run.dir=.", "dir must name a folder for this run alone, got '.'"),
    "more threads than machines have": change("run.threads=1e5", "run.threads: expected at most 1,024, got 100000"),
    "a skip limit above 1": change("rewards.0.skip_limit=2", "rewards.0.skip_limit: expected at most 1, got 2"),
}

OVERRIDES = {
    "an override without a value": change("trainer.steps", "The override 'trainer.steps' is not of the form key=value"),
    "an override without a key": change("=5", "'=5' is not of the form key=value"),
    "an override with two dots": change("trainer..steps=5", "is not of the form key=value"),
    "an override of an unknown key": change(
        "trainer.stepz=5", "override 'trainer.stepz=5': unknown key 'trainer.stepz'"
    ),
    "an override inside a single value": change("policy.use.x=5", "policy.use is a single value, not"),
    "an override behind the list's end": change("rewards.1.weight=2", "rewards is a list of 1"),
    "an override of a list by a word": change("rewards.length.weight=2", "rewards is a list of 1", "got 'length'"),
    "an override in an empty list": Bad(
        ["train", "c.yaml", "rewards=[]", "rewards.0.weight=1"], ["rewards is a list of 0"]
    ),
    "an override that is no YAML": change("trainer.steps=[", "not YAML: ", "Put quotes round a text"),
    "an override of the wrong type": change("trainer.steps=x", "override 'trainer.steps=x': trainer.steps: expected a"),
    "an override inside itself": change("policy.a=&x [*x]", "not YAML", "contains itself"),
}

DATA_FILES = {
    "prompts that are not there": change(
        "data.prompts=no.txt", "override 'data.prompts=no.txt': data.prompts: The text file no.txt does not exist (look"
    ),
    "prompts that are a folder": change("data.prompts=d", "d is a folder without metadata", files={"d/x": ""}),
    "an empty name of a prompts file": change("data.prompts=''", "data.prompts: expected a text that is not empty"),
    "a name with a NUL byte": change('data.prompts="a\\0b"', "cannot be read as UTF-8 text: embedded null byte"),
    "a name with half a surrogate": change(
        'data.prompts="\\uD800"', "data.prompts: expected a text without an unpaired surrogate"
    ),
    "a name of a prompts file too long": change("data.prompts=" + "x" * 300, "cannot be read", "File name too long"),
    "an empty prompts file": prompts("", "p.txt holds no prompt"),
    "a prompts file of blank lines": prompts("\n \n\t\n", "p.txt holds no prompt"),
    "a prompts file in Latin-1": prompts(b"caf\xe9\n", "p.txt cannot be read as UTF-8 text"),
    "prompts that the policy cannot read": Bad(
        ["train", "c.yaml", "policy={use: toy-lm}"],
        ["prompts.txt, line 2: toy-lm reads sums of two two-digit numbers such as '47+32'; 'hello' has"],
        {"prompts.txt": "47+32\nhello\n"},
    ),
    "prompts that a policy without training cannot read": Bad(
        ["sample", "c.yaml", "policy={use: toy-lm}", "--prompts", "p.txt"],
        ["p.txt, line 2: toy-lm reads sums of two two-digit numbers such as '47+32'; 'hello' has"],
        {"p.txt": "47+32\nhello\n"},
    ),
    "held-out prompts that the policy cannot read": Bad(
        ["evaluate", "c.yaml", "policy={use: toy-lm}", "eval.prompts=p.txt"],
        ["p.txt, line 2: toy-lm reads sums of two two-digit numbers such as '47+32'; 'hello' has"],
        {"p.txt": "47+32\nhello\n"},
    ),
    "a line that is no JSON": jsonl("{prompt: 1}", "data.prompts: p.jsonl, line 2: not JSON (Expecting", "column 2"),
    "a line that is a list": jsonl("[1]", "p.jsonl, line 2: expected an object like {\"prompt\": ...}, got '[1]'"),
    "a line without a prompt": jsonl('{"promt": "x"}', "line 2 has the prompt nothing (null)"),
    "a line with a key of 5,000 letters": jsonl(json.dumps({"x" * 5000: 1}), "line 2 has the prompt nothing (null)"),
    "a prompt that is a number": jsonl('{"prompt": 5}', "p.jsonl, line 2 has the prompt 5; expected a text"),
    "a prompt of spaces": jsonl('{"prompt": "  "}', "p.jsonl, line 2: the prompt is '  '; expected a text"),
    "a line of brackets": jsonl("[" * 100_000, "p.jsonl, line 2: not JSON (it is nested too deeply"),
    "an empty JSONL file": change("data={prompts: e.jsonl}", "e.jsonl holds no prompt", files={"e.jsonl": "\n"}),
    "a picture that is not there": jsonl(
        '{"prompt": "1", "image": "no.png"}', "line 2: source: the file no.png does not"
    ),
    "a picture's name that is a number": jsonl(
        '{"prompt": "1", "image": 5}', "line 2: source is 5; expected a file name"
    ),
    "a target that is a folder": jsonl(
        '{"prompt": "1", "target": "t.png"}', "t.png cannot be read as a picture", files={"t.png/x": ""}
    ),
    "targets that are not there": change("data={prompts: prompts.txt, targets: t}", "There is no folder t (looked in"),
    "targets that are a file": change(
        "data={prompts: prompts.txt, targets: prompts.txt}", "There is no folder prompts.txt"
    ),
    "two targets for one line": prompts(
        "1\n", "Both t/01.png and t/1.png are for line 1; keep one", files={"t/1.png": PICTURE, "t/01.png": PICTURE}
    ),
    "a gap in the targets": prompts(
        "1\n2\n", "p.txt, line 2, has no picture in t: expected 2.png (or .jpg", files={"t/1.png": PICTURE}
    ),
    "targets numbered from 0": prompts(
        "1\n2\n", "Numbering starts at 1, but there is a file for 0", files={"t/0.png": PICTURE, "t/1.png": PICTURE}
    ),
    "a target that is a text": prompts(
        "1\n", "p.txt, line 1: t/1.png cannot be read as a picture: its content is", files={"t/1.png": "hello"}
    ),
    "a target that is empty": prompts("1\n", "p.txt, line 1: t/1.png cannot be read", files={"t/1.png": b""}),
    "a target cut off in its header": prompts("1\n", "t/1.png cannot be read as a", files={"t/1.png": PICTURE[:20]}),
    "a target without pixels": prompts("1\n", "t/1.png cannot be read as a picture", files={"t/1.png": png(0, 5)}),
    "a target of 400 million pixels": prompts(
        "1\n",
        "t/1.png cannot be read as a picture: Image size (400000000 pixels)",
        files={"t/1.png": png(20_000, 20_000)},
    ),
    "a target of 100 million pixels": prompts(
        "1\n", "t/1.png has 10,000 x 10,000 = 100,000,000 pixels; the limit", files={"t/1.png": png(10_000, 10_000)}
    ),
    "a target cut off in its body": prompts(
        "1\n", "p.txt, line 1: t/1.png cannot be read as a picture: Truncated", files={"t/1.png": PICTURE[:2000]}
    ),
    "held-out prompts that are not there": change(
        "eval.prompts=no.txt", "eval.prompts: The text file no.txt does not exist"
    ),
    "held-out JSONL with a bad line": change(
        "eval.prompts=e.jsonl", "eval.prompts: e.jsonl, line 1: not JSON", files={"e.jsonl": "x\n"}
    ),
    "two kinds of held-out prompts": change(
        "eval={prompts: b, fraction: 0.5}", "eval: give one kind of held-out prompts; got prompts and fraction"
    ),
    "a fraction that holds out nothing": change(
        "eval.fraction=0.01", "eval.fraction: Holding out 0.01 of 4 prompts leaves 4 for training and 0"
    ),
    "a fraction above 1": change("eval.fraction=1.5", "eval.fraction: expected less than 1, got 1.5"),
    "a dataset that is not there": change(
        "data={dataset: no/where}",
        "data.dataset: Dataset 'no/where', split 'train'",
        "Fetch it on a machine with a network",
    ),
    "a subset of what is no dataset": change("data={prompts: p.jsonl, subset: main}", "'subset' goes with 'dataset'"),
    "a dataset of an empty folder": change("data={dataset: d}", "Dataset 'd', split 'train' cannot", files={"d/x": ""}),
    "a dataset of damaged JSON": change(
        "data={dataset: d}", "Dataset 'd', split 'train' cannot be read", files={"d/train.jsonl": "{{{"}
    ),
    "a dataset's column that is not there": change(
        "data={dataset: d}",
        "data.dataset: Dataset d has no column 'prompt'; it has: words",
        "`columns: {prompt: ...}`",
        files={"d/train.jsonl": '{"words": "x"}\n'},
    ),
    "a dataset's column of numbers": change(
        "data={dataset: d}", "row 0 has the prompt 5; expected a text", files={"d/train.jsonl": '{"prompt": 5}\n'}
    ),
}

FUNCTIONS = {
    "a data function without a colon": change("data={use: my_data}", "data.use: There is no dataset called 'my_data'"),
    "a data function in no module": change("data={use: 'no_mod:f'}", "data.use: ", "there is no module 'no_mod'"),
    "a data function that is not there": code(
        "data={use: 'bad_a:prompt'}", "def prompts(split): ...", "'prompt' in 'bad_a'", "did you mean 'prompts'?"
    ),
    "a data function that raises": code(
        "data={use: 'bad_b:f'}",
        "def f(split):\n    return {}[split]",
        "data.use: The dataset 'bad_b:f' fails with split='train': KeyError: 'train' (bad_b.py, line 2",
    ),
    "a data function that exits": code("data={use: 'bad_c:f'}", "def f(split):\n    exit(3)", "SystemExit: 3"),
    "a data function that raises on the way": code(
        "data={use: 'bad_d:f'}",
        "def f(split):\n    yield 'a'\n    raise RuntimeError('the server is gone')",
        "The dataset 'bad_d:f' failed while giving prompts for split 'train': RuntimeError: the server is gone",
    ),
    "a data function that returns None": code(
        "data={use: 'bad_e:f'}", "def f(split): ...", "Expected a list of prompts, got a NoneType"
    ),
    "a data function that returns numbers": code(
        "data={use: 'bad_f:f'}", "def f(split): return [1]", "Prompt 0 is 1; expected a text, or a grpokit.Prompt"
    ),
    "a data function that returns a text": code(
        "data={use: 'bad_g:f'}", "def f(split): return 'cat'", "Expected a list of prompts, got a str"
    ),
    "a data function that returns nothing": code(
        "data={use: 'bad_h:f'}", "def f(split): return []", "dataset 'bad_h:f' gave no prompts for split 'train'"
    ),
    "a data function without split": code(
        "data={use: 'bad_i:f'}", "def f(): ...", "has no parameter 'split'", "It accepts: none"
    ),
    "a data function's unknown parameter": code(
        "data={use: 'bad_j:f', coutn: 3}", "def f(split, count=1): ...", "no parameter 'coutn' (did you mean 'count'?)"
    ),
    "a module that cannot be imported": code(
        "rewards=[{use: 'bad_k:f'}]", "1 / 0", "rewards.0: ", "cannot be imported from 'bad_k': ZeroDivisionError"
    ),
    "a module with a syntax error": code("rewards=[{use: 'bad_l:f'}]", "def f(:", "cannot be imported", "SyntaxError"),
    "a module that exits": code("rewards=[{use: 'bad_m:f'}]", "raise SystemExit('bye')", "SystemExit: bye"),
    "a reward that is a number": code(
        "rewards=[{use: 'bad_n:x'}]", "x = 3", "'x' in 'bad_n', which is an int, not a function"
    ),
    "a reward's class that raises": code(
        "rewards=[{use: 'bad_o:R'}]",
        "class R:\n    def __init__(self):\n        raise KeyError('scale')",
        "reward 'bad_o:R' fails with its defaults: KeyError: 'scale' (bad_o.py, line 3, in __init__)",
    ),
    "a reward's class that cannot be called": code(
        "rewards=[{use: 'bad_p:R'}]", "class R: ...", "returned an object of type R; expected a function, or an object"
    ),
    "a policy's factory that returns None": code(
        "policy={use: 'bad_q:f'}",
        "def f(): ...",
        "lacks rollout, logprobs",
        "of the policy contract (it is of type None",
    ),
    "an objective's factory that returns None": code(
        "trainer.objective={use: 'bad_r:f'}", "def f(): ...", "returned an object of type NoneType; expected a grp"
    ),
    "a reward's own kind of error, as it is built": code(
        "rewards=[{use: 'bad_w:R'}]",
        f"{OWN}class R:\n    def __init__(self):\n        raise Own('scale.txt', 7)",
        "rewards.0: scale.txt, line 7: no number",
    ),
    "an advantage that raises": code(
        "trainer.advantage={use: 'bad_s:f'}",
        "def f(rewards, weights, groups):\n    return rewards.nope",
        "trainer.advantage: The advantage 'bad_s:f' fails on a trial batch: AttributeError: ",
        "(bad_s.py, line 2, in f)",
    ),
    "a reward's class that is cancelled": code(
        "rewards=[{use: 'bad_aa:R'}]",
        "from asyncio import CancelledError\n\n\nclass R:\n    def __init__(self):\n        raise CancelledError",
        "reward 'bad_aa:R' fails with its defaults: CancelledError (bad_aa.py, line 6, in __init__)",
    ),
    "a module that is cancelled": code(
        "rewards=[{use: 'bad_ab:f'}]",
        "from asyncio import CancelledError\n\nraise CancelledError('gone')",
        "cannot be imported from 'bad_ab': CancelledError: gone",
    ),
    "an error whose message cannot be shown": code(
        "data={use: 'bad_ac:f'}",
        "class Wordless(Exception):\n    def __str__(self):\n        raise TypeError\n\n\n"
        "def f(split):\n    raise Wordless",
        "fails with split='train': Wordless, whose message cannot be shown (bad_ac.py, line 7, in f)",
    ),
    "a module that is missing inside a module": code(
        "rewards=[{use: 'bad_t:f'}]",
        "import nobody_has_this",
        "needs the Python module 'nobody_has_this' (bad_t.py, line 1, in <module>), which is not installed. Check the",
    ),
}

COMPONENTS = {
    "a policy's name misspelt": change(
        "policy.use=toy-glyf", "policy: There is no policy called 'toy-glyf' (did you mean 'toy-glyph'?). Known: "
    ),
    "a preset's name misspelt": Bad(
        ["train", "toy-glyf"], ["There is no preset called 'toy-glyf' (did you mean 'toy-glyph'?)", "ends in .yaml"]
    ),
    "a reward's name misspelt": part(
        "use: length",
        "use: lenght",
        "c.yaml, line 3: rewards.0: There is no reward called 'lenght' (did you mean 'leng",
    ),
    "a policy's name as a reward's": change("rewards=[{use: toy-lm}]", "There is no reward called 'toy-lm'"),
    "an advantage's name misspelt": change("trainer.advantage=grup", "trainer.advantage: There is no advantage called"),
    "an objective's name misspelt": change(
        "trainer.objective=gpro", "no objective called 'gpro' (did you mean 'grpo'?)"
    ),
    "a policy's parameter misspelt": change(
        "policy.vocb=3", "no parameter 'vocb' (did you mean 'vocab'?). It accepts: vocab=6, length=7"
    ),
    "a policy's parameter of the wrong type": change(
        "policy={use: toy-lm, temperature: abc}",
        "toy-lm': temperature must be a finite number, got 'abc'. temperature: of the training samples",
    ),
    "a policy's parameter out of range": change("policy={use: toy-lm, temperature: 0}", "temperature must be above 0"),
    "a policy's parameter that is not a number": change(
        "policy={use: toy-lm, temperature: .nan}", "temperature must be a finite number, got nan"
    ),
    "a policy's parameter that is null": change("policy.vocab=null", "vocab must be a whole number, got nothing"),
    "a policy's parameter that is true": change("policy.vocab=true", "vocab must be a whole number, got true"),
    "a policy that fails with its parameters": change(
        "policy.vocab=-1", "policy: The policy 'tiny_policies:TinyTokens' fails with vocab=-1: RuntimeError"
    ),
    "a reward's parameter misspelt": change("rewards.0.maximun=3", "no parameter 'maximun' (did you mean 'maximum'?)"),
    "a reward's parameter of the wrong type": change("rewards.0.scale=x", "scale must be a finite number, got 'x'"),
    "a reward's parameter that is missing": change("rewards=[{use: format}]", "needs the parameter 'pattern'"),
    "a pattern that is none": change(
        "rewards=[{use: format, pattern: '('}]", "rewards.0: format: the pattern '(' is not a regular expression: mis"
    ),
    "a number's pattern without a group": change(
        "rewards=[{use: length}, {use: numeric-answer, weight: 0, pattern: 'Answer: [0-9]+'}]",
        "has no group",
        "Put parentheses round it",
    ),
    "a range that holds no text": change("rewards.0.minimum=9", "no text has at least 9 and at most 3 characters"),
    "an advantage's scale that is none": change(
        "trainer.advantage={use: group, scale: grop}", "scale must be 'group' or 'batch' or 'none', got 'grop'"
    ),
    "an advantage's clip below 0": change(
        "trainer.advantage={use: group, clip: -1}", "trainer.advantage: Advantage clip must be above 0, or None"
    ),
    "an objective's parameter misspelt": change("trainer.objective={use: grpo, clip: 1}", "has no parameter 'clip'"),
    "a clip range for an objective without one": change(
        "trainer={objective: cispo, clip_range: 0.2}", "objective 'cispo' has no parameter 'clip_range'"
    ),
    "a parameter in two places": change(
        "trainer={objective: {use: grpo, kl_coef: 1}, kl_coef: 2}",
        "'kl_coef' is set both in trainer and in trainer.obj",
    ),
    "a run folder that is three deep": Bad(
        ["train", "c.yaml", "run.dir=a/b/out", "trainer.minibatches=3"], ["minibatches=3 does not divide"]
    ),
    "minibatches that do not divide": change(
        "trainer.minibatches=3",
        "error: c.yaml, line 4, with override 'trainer.minibatches=3': trainer: minibatches=3 does not divide",
    ),
}

A_RUN = {"out/config.yaml": GOOD, "out/versions.json": "{}"}
SWEEP = ["sweep", "c.yaml", "seed=1", "--dir", "d"]

FOLDERS = {
    "a run folder that is a file": change("run.dir=prompts.txt", "prompts.txt is a file", "run.dir=..."),
    "a run folder below a file": change("run.dir=prompts.txt/out", "prompts.txt/out cannot be made"),
    "a run folder of something else": change(
        "run.dir=d", "d holds files that are not a run of grpokit", files={"d/x": ""}
    ),
    "a run folder in use": Bad(
        ["train", "c.yaml"],
        ["out already holds a run. Add --resume to continue it, --overwrite to delete it"],
        A_RUN,
    ),
    "resume and overwrite": Bad(
        ["train", "c.yaml", "--resume", "--overwrite"], ["either --resume or --overwrite, not"]
    ),
    "evaluation of a folder that is no run": Bad(["evaluate", "d"], ["Name the rewards: --reward NAME"], {"d/x": ""}),
    "evaluation of a run without a checkpoint": Bad(["evaluate", "out"], ["out has no checkpoint yet"], A_RUN),
    "evaluation of a run with a damaged config": Bad(
        ["evaluate", "out"], ["out/config.yaml, line 1: not YAML"], {"out/config.yaml": "{", "out/versions.json": "{}"}
    ),
    "evaluation without held-out prompts": Bad(["evaluate", "c.yaml"], ["names no held-out prompts. Set eval."]),
    "samples in place of a file": Bad(["sample", "c.yaml", "--out", "prompts.txt"], ["'--out'", "file"], usage=True),
    "samples below a file": Bad(
        ["sample", "c.yaml", "--out", "prompts.txt/s"], ["prompts.txt/s cannot be written: "], code=1
    ),
    "samples in a folder in use": Bad(
        ["sample", "c.yaml", "--out", "d"], ["d already holds files. Choose another folder with --out"], {"d/x": ""}
    ),
    "a report of nothing": Bad(["report", "nowhere"], ["nowhere is not a run folder"]),
    "a report in place of another file": Bad(
        ["report", "out", "--out", "prompts.txt"], ["prompts.txt exists already and is no report"], A_RUN
    ),
    "a report of a run whose metrics are no file": Bad(
        ["report", "out"],
        ["out/metrics.jsonl is damaged: it is not a regular file"],
        {**A_RUN, "out/metrics.jsonl/x": ""},
    ),
    "a sweep in place of a file": Bad(SWEEP, ["d cannot be written: "], {"d": ""}, code=1),
    "a sweep in a run": Bad(SWEEP, ["d is a run. Choose"], {"d/config.yaml": GOOD}),
    "a sweep in place of another table": Bad(SWEEP, ["d/sweep.md is not the table of a sweep"], {"d/sweep.md": "mine"}),
    "a new run in place of its prompts": Bad(
        ["train", "c.yaml", "data={prompts: out/mine/p.txt}", "--overwrite"],
        ["The prompts out/mine/p.txt lie in", "which a new run empties"],
        {**A_RUN, "out/mine/p.txt": "1\n2\n3\n4\n"},
    ),
    **{
        f"a name that no file can have, for {command}": Bad([command, "x" * 300], [says])
        for command, says in (
            ("sample", "There is no preset called 'xxx"),
            ("evaluate", "There is no preset called 'xxx"),
            ("attribute", "There is no preset called 'xxx"),
            ("report", "is not a run folder: it has no config.yaml"),
        )
    },
}

OPTIONS = {
    "an unknown command": Bad(["trian"], ["No such command 'trian'"], usage=True),
    "an unknown option": Bad(["train", "c.yaml", "--overwrit"], ["No such option: --overwrit"], usage=True),
    "train without a source": Bad(["train"], ["Missing argument 'PRESET_OR_FILE'"], usage=True),
    "no sample": Bad(["sample", "c.yaml", "-n", "0"], ["--count", "1"], usage=True),
    "a count that is a word": Bad(["sample", "c.yaml", "-n", "two"], ["--count", "integer"], usage=True),
    "both kinds of prompts": Bad(
        ["sample", "c.yaml", "--prompt", "1", "--prompts", "prompts.txt"], ["either --prompt or --prompts, not both"]
    ),
    "a prompts option of nothing": Bad(
        ["sample", "c.yaml", "--prompts", "no.txt"], ["The text file no.txt does not exist (looked in /"]
    ),
}

FAILED_RUNS = {
    "a reward's own kind of error in the run": Bad(
        ["train", "c.yaml", "rewards=[{use: 'bad_x:f'}]"],
        [
            "Reward 'f': scale.txt, line 7: no number\n",
            "; correct the input, then continue with --resume (and --force, ",
        ],
        {"bad_x.py": f"{OWN}def f(samples):\n    raise Own('scale.txt', 7)"},
        leaves=True,
    ),
    "a reward's own kind of error on files": Bad(
        ["evaluate", "a.jsonl", "--reward", "bad_y:f", "--out", "kept"],
        ["Reward 'f': scale.txt, line 7: no number (Rows are counted from 0, in the batch from "],
        {
            "bad_y.py": f"{OWN}def f(samples):\n    raise Own('scale.txt', 7)",
            "a.jsonl": '{"prompt": "p", "output": "x"}',
        },
        leaves=True,
    ),
    "a reward that raises in the run": Bad(
        ["train", "c.yaml", "rewards=[{use: 'bad_u:f'}]"],
        ["Reward 'f' raised ValueError: no key", "(bad_u.py, line 2, in f)", "continue with --resume"],
        {"bad_u.py": "def f(samples):\n    raise ValueError('no key')"},
        code=1,
        leaves=True,
    ),
    "a reward that is infinite in the run": Bad(
        ["train", "c.yaml", "rewards=[{use: 'bad_v:f'}]"],
        ["Reward 'f': it gave inf for row 0", "expected a finite number", "continue with --resume"],
        {"bad_v.py": "def f(samples):\n    return [float('inf')] * len(samples)"},
        code=1,
        leaves=True,
    ),
}

TABLE = {
    **CONFIG_FILE,
    **KEYS,
    **VALUES,
    **OVERRIDES,
    **DATA_FILES,
    **FUNCTIONS,
    **COMPONENTS,
    **FOLDERS,
    **OPTIONS,
    **FAILED_RUNS,
}


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file with its content, every folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.mark.parametrize("bad", TABLE.values(), ids=TABLE)
def test_bad_input(
    bad: Bad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in {"c.yaml": GOOD, "prompts.txt": "1\n2\n3\n4\n", **bad.files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = tree(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "argv", ["grpokit", *bad.typed])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code == bad.code, said.err
    if bad.usage:
        assert said.err.startswith("Usage: ")
    else:
        assert said.err.startswith("error: ")
        assert len(re.findall(r"^error: ", said.err, re.MULTILINE)) == 1
    assert "Traceback" not in said.err + said.out
    assert "?." not in said.err  # one mark ends a sentence
    assert len(said.err) < 2000  # input of any length is not repeated
    for words in bad.says:
        assert words in said.err
    if not bad.leaves:
        assert said.out == ""
        assert tree(tmp_path) == before


def test_the_table_is_large_and_every_message_its_own() -> None:
    parts = (CONFIG_FILE, KEYS, VALUES, OVERRIDES, DATA_FILES, FUNCTIONS, COMPONENTS, FOLDERS, OPTIONS, FAILED_RUNS)
    assert len(TABLE) == sum(map(len, parts)) >= 150
    assert len({(tuple(bad.typed), tuple(bad.files.items())) for bad in TABLE.values()}) == len(TABLE)


def test_the_trackers_are_accelerates() -> None:
    """The config names them by itself, so that reading one does not import accelerate."""
    assert set(schema._Tracker.__args__) == {kind.value for kind in LoggerType} - {"all"}  # type: ignore[attr-defined]
