"""The time of a step of GLM-Image on several GPUs, from `grpokit plan` and a model of what processes wait for.

python benchmarks/simulate_step.py --gpus 8                # a table; config words such as trainer.group_size=16 too
python benchmarks/simulate_step.py --gpus 64 --slow 1.2    # one GPU takes 1.2 times as long
python benchmarks/simulate_step.py --measure               # runs of toy-lm here, against which the model is held
python benchmarks/simulate_step.py --write                 # the tables of docs/glm-image-at-scale.md
python benchmarks/simulate_step.py --check                 # exits with 1 where these are out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lm_job.tables import write
from step_measured import LARGE, OTHER, RUNS, measure
from step_model import Prediction, Ring, Step, line, sent_by_gathering, sent_by_sum, simulate

from grpokit import GrpokitError
from grpokit.config import presets
from grpokit_plan import cards
from grpokit_plan.estimate import Estimate, needs_of

ROOT = Path(__file__).parent
PAGE, FIGURES, CONFIG = (
    ROOT.parent / "docs/glm-image-at-scale.md",
    ROOT / "simulate_step.json",
    ROOT / "simulate_step.yaml",
)
REWARD = 0.1  # seconds that a process takes to score a picture: assumed
NVLINK = (
    380e9  # bytes per second in one direction between two H100, measured by others (github.com/NVIDIA/nccl/issues/1264)
)
ETHERNET = 12.5e9  # 100 Gbit/s between machines
TRAINED = 8_847_155_200  # parameters of the language model of the autoregressive half
LAYERS, AT_ONCE = 40, 3  # of the same; how many of them are gathered at a time while one computes
STRETCHES = (("rollout", "decode", "reward"), ("old", "reference"), ("train",), ("optimizer",))
HERE = (("rollout", "reward"), ("logprobs",), ("backward",), ("optimizer",), (OTHER,))
REMEDIES = {
    "rollout": "an external engine, or more rows per GPU: a small batch costs as much as a larger one",
    "decode": "fewer `decode.steps`, `guidance: 1`, a smaller picture",
    "reward": "`workers`, or the reward on other GPUs by `serve-reward`",
    "reference": "`kl_coef: 0`",
    "train": "a larger `micro_batch_size` where memory allows it",
    "network": "a faster connection, or fewer updates per rollout",
}
DECODES = (("20 steps", ()), ("10 steps, no guidance", ("policy.decode.steps=10", "policy.decode.guidance=1.0")))
Table = list[list[str]]


@cache
def estimate(groups: int, words: tuple[str, ...], gpu: str = "H100") -> Estimate:
    """What `grpokit plan` says of a process that has so many groups."""
    config, _ = presets.read_config(str(CONFIG), [*words, f"trainer.prompts_per_step={groups}"])
    return Estimate(card=cards.by_name(gpu), needs=needs_of(config, reference=config.trainer.kl_coef != 0)[1])


def glm_step(words: tuple[str, ...] = (), *, reward: float = REWARD, slow: float = 1.0) -> Step:
    """The step of the config with changes."""
    config, _ = presets.read_config(str(CONFIG), list(words))
    rows = config.trainer.group_size

    def work(groups: int) -> dict[str, float]:
        return {**estimate(groups, words).seconds(), "reward": reward * rows * groups}

    return Step(
        groups=config.trainer.prompts_per_step,
        work=work,
        stretches=STRETCHES,
        meetings=int(figures()["sent"]["2 x 8"]["meetings"]),
        gradients=estimate(1, words).parts()["gradients"]["train"],
        updates=config.trainer.updates_per_rollout * config.trainer.minibatches,
        slow={0: slow},
    )


def ring(size: int, *, bandwidth: float = NVLINK) -> Ring:
    """What connects so many GPUs; a message takes as long as on the machine of the measured runs."""
    return Ring(bandwidth=bandwidth, latency=figures()["sent"]["2 x 8"]["meeting_seconds"] / 2)


@cache
def figures() -> dict[str, Any]:
    """What was measured."""
    return dict(json.loads(FIGURES.read_text(encoding="utf-8")))


def bottleneck(prediction: Prediction) -> str:
    """The phase that takes longest."""
    times = {**prediction.phases, "network": prediction.network}
    return max(times, key=lambda name: times[name])


def step_rows(sizes: Iterable[int], words: tuple[str, ...], **changes: float) -> Iterable[list[str]]:
    """A row of times for each number of GPUs."""
    step = glm_step(words, **changes)
    alone = simulate(step, 1, ring(1)).seconds
    for size in sizes:
        found = simulate(step, size, ring(size))
        phases = [found.phases[name] for name in ("rollout", "decode", "reward", "reference", "train")]
        most = bottleneck(found)
        seconds = {**found.phases, "network": found.network}[most]
        yield [
            str(size),
            *map(number, phases),
            number(found.network),
            number(found.seconds),
            f"{alone / found.seconds / size:.0%}",
            f"{most} ({seconds / found.seconds:.0%}): {REMEDIES[most]}",
        ]


STEP_HEAD = [
    "GPUs",
    "rollout",
    "decode",
    "rewards",
    "reference",
    "train",
    "network",
    "step",
    "efficiency",
    "bottleneck and remedy",
]


def times_table() -> Table:
    """The time of a step by number of GPUs and by decode."""
    rows = [[label, *row] for label, words in DECODES for row in step_rows((1, 8, 64), words)]
    return [["decode", *STEP_HEAD], *rows]


def uneven_table() -> Table:
    """What it costs when processes have unequal work."""
    cases = {
        "64 groups on 64 GPUs": ((), 1.0),
        "one GPU takes 1.2 times as long": ((), 1.2),
        "72 groups: 8 GPUs have two, the others one": (("trainer.prompts_per_step=72",), 1.0),
        "60 groups: 4 GPUs have none": (("trainer.prompts_per_step=60",), 1.0),
    }
    rows = []
    for label, (words, slow) in cases.items():
        step = glm_step(words, slow=slow)
        found = simulate(step, 64, ring(64))
        rows.append([label, number(found.seconds), f"{60 * step.groups / found.seconds:.0f}", f"{found.waiting:.0%}"])
    return [["on 64 GPUs", "step, s", "groups per minute", "waiting"], *rows]


def traffic_table() -> Table:
    """What a GPU sends in a step, and how long that takes."""
    config, _ = presets.read_config(str(CONFIG), [])
    rows, micro = config.trainer.prompts_per_step * config.trainer.group_size, config.trainer.micro_batch_size
    parts = estimate(1, ()).parts()

    def gathers(size: int) -> float:
        return (2 + 2 * rows / size / micro) * sent_by_gathering(size, blocks())

    def scores(size: int) -> float:
        small, large = (figures()["sent"][name]["messages"] for name in ("2 x 3", "2 x 8"))
        per_row = (large - small) / (3 * 32)  # process 0 has 1 group of 32 rows there, and 4 here
        return (size - 1) * (large - 4 * 32 * per_row) + sent_by_gathering(size, rows * per_row)

    kinds = {
        "sum of the gradients of the adapter, fp32": lambda size: sent_by_sum(size, parts["gradients"]["train"]),
        "sum of the gradients of all weights, fp32": lambda size: sent_by_sum(size, 4.0 * TRAINED),
        "FSDP2: all-gathers of the base's layers, bf16": gathers,
        "scores and what else processes tell each other": scores,
    }
    body = []
    for label, sent in kinds.items():
        cells = [size_of(sent(8)), number(sent(8) / NVLINK)]
        body.append([label, *cells, size_of(sent(64)), *(number(sent(64) / speed) for speed in (NVLINK, ETHERNET))])
    head = ["a step's", "8 GPUs", "NVLink, s", "64 GPUs", "fast network, s", "100 Gbit/s Ethernet, s"]
    return [head, *body]


def blocks() -> float:
    """Bytes of the base's layers, which FSDP2 spreads; embedding and head stay whole."""
    return estimate(1, ()).parts()["weights for drawing"]["rollout"]  # copies of all linear layers inside of them


def memory_table() -> Table:
    """GiB per GPU by moment, with a whole copy and with a sharded base."""
    body, layer = [], blocks() / LAYERS
    for size in (8, 64):
        sums, own = estimate(64 // size, ()).sums(), blocks() / size
        gathered = {name: AT_ONCE * layer if name == "train" else blocks() for name in sums}
        sharded = {name: total - blocks() + own + gathered[name] for name, total in sums.items()}
        body.append([f"{size} GPUs, a whole copy in each", *(f"{value / 2**30:.1f}" for value in sums.values())])
        body.append([f"{size} GPUs, base sharded by FSDP2", *(f"{value / 2**30:.1f}" for value in sharded.values())])
    return [["", *estimate(8, ()).sums()], *body]


def held_table() -> Table:
    """Predicted against measured: toy-lm on two processes and on one."""
    runs, sent = figures()["runs"], figures()["sent"]
    work = line({RUNS[name][1]: {k: v for k, v in runs[name].items() if k != "step"} for name in ("1 x 2", "1 x 8")})
    body = []
    for groups in (8, 3):
        own = sent[f"2 x {groups}"]
        latency = own["meeting_seconds"] / 2
        here = Ring(bandwidth=LARGE / (own["large_sum_seconds"] - 2 * latency), latency=latency)
        step = Step(groups=groups, work=work, stretches=HERE, meetings=int(own["meetings"]), gradients=own["gradients"])
        alone, two = simulate(step, 1, here), simulate(step, 2, here)
        measured = [runs[f"{size} x {groups}"]["step"] for size in (1, 2)]
        body.append(
            [
                f"{groups}: {groups // 2} + {groups - groups // 2}",
                *(f"{1000 * seconds:.0f}" for seconds in (*measured, two.seconds)),
                f"{two.seconds / alone.seconds:.2f}",
                f"{measured[1] / measured[0]:.2f}",
            ]
        )
    head = ["groups", "1 process, ms", "2 processes, ms", "predicted, ms", "predicted ratio", "measured ratio"]
    return [head, *body]


TABLES = {
    "times": times_table,
    "uneven": uneven_table,
    "traffic": traffic_table,
    "memory": memory_table,
    "held": held_table,
}


def number(seconds: float) -> str:
    """Seconds with two digits that matter, down to a hundredth."""
    if seconds >= 1:
        return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.1f}"
    return f"{seconds:.2f}" if seconds >= 0.005 else "<0.01"


def size_of(content: float) -> str:
    """Bytes in GiB or KiB."""
    return f"{number(content / 2**30)} GiB" if content >= 0.01 * 2**30 else f"{content / 1024:.0f} KiB"


def markdown(table: Table) -> str:
    """A table for the page."""
    head, *body = table
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def text(table: Table) -> str:
    """A table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )


def write_page(page: Path) -> None:
    """Write all tables into the page."""
    for name, table in TABLES.items():
        write(page, f"simulated {name}", markdown(table()))


def stale() -> bool:
    """Whether the page would change."""
    before = PAGE.read_text(encoding="utf-8")
    return any(f"<!-- simulated {name} -->\n{markdown(table())}\n" not in before for name, table in TABLES.items())


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="changes to simulate_step.yaml")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--slow", type=float, default=1.0, help="how many times longer one GPU takes")
    parser.add_argument("--reward", type=float, default=REWARD, help="seconds to score a picture")
    action = parser.add_mutually_exclusive_group()
    for name in ("--measure", "--write", "--check"):
        action.add_argument(name, action="store_true")
    options = parser.parse_args(arguments)
    if min(options.gpus) < 1 or options.slow < 1 or options.reward < 0:
        parser.error("--gpus takes whole numbers from 1, --slow a number from 1, --reward one from 0")
    if options.measure:
        FIGURES.write_text(json.dumps(measure(least=6), indent=1) + "\n", encoding="utf-8")
        figures.cache_clear()
        print(text(held_table()))
    elif options.write:
        write_page(PAGE)
    elif options.check:
        if stale():
            print(f"docs/{PAGE.name} is out of date: run python benchmarks/simulate_step.py --write", file=sys.stderr)
            return 1
    else:
        rows = step_rows(options.gpus, tuple(options.words), reward=options.reward, slow=options.slow)
        print(text([STEP_HEAD, *rows]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except GrpokitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
