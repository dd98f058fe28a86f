"""The rollout record: all samples of a step with their decisions and scores.

`rollouts/step_000001/` holds `samples.jsonl` (a row per sample, as under `samples/`), its pictures, and
`trace.safetensors`: what is made of numbers, each tensor in its own precision. A folder is complete or not there.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from grpokit.errors import RunError, error_line
from grpokit.files import replacing, step_folders, step_name
from grpokit.processes.rendezvous import join
from grpokit.run_folder.journal import finite
from grpokit.run_folder.names import ROLLOUTS, ROWS, TRACE
from grpokit.tracking.step_report import StepReport
from grpokit.training.checkpoint import apart

_AS_PNG = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")  # these come back from a PNG as they were


@dataclass(frozen=True, kw_only=True)
class Described:
    """Stands for a recorded output that is neither plain data nor picture nor numbers: only its `repr` was kept."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A recorded step.

    Attributes:
        rows: B rows of `samples.jsonl`.
        outputs: B outputs as the rewards saw them, or `Described`.
        reward_names: R names.
        tensors: as `tensors()` gave them, such as "groups" [B], "rewards" [B, R] and "old.logprobs" [B, T].
        conditions: what the numbers may depend on, as `conditions()` gave it then.
    """

    rows: Sequence[Mapping[str, Any]]
    outputs: Sequence[Any]
    reward_names: Sequence[str]
    tensors: Mapping[str, Tensor]
    conditions: Mapping[str, Any]


def folder_of(run: Path, step: int) -> Path:
    """The folder of a step's record."""
    return run / ROLLOUTS / step_name(step)


def recorded_steps(run: Path) -> list[int]:
    """The recorded steps of a run, ascending."""
    return [step for step, _ in step_folders(run / ROLLOUTS)]


def conditions(device: torch.device) -> dict[str, Any]:
    """What the last bits of a computation may depend on besides its input."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else f"cpu ({torch.backends.cpu.get_cpu_capability()})",
        "threads": torch.get_num_threads(),
        "processes": join().size,
        "torch": torch.__version__,
    }


def tensors(report: StepReport) -> dict[str, Tensor]:
    """A step's tensors on the CPU, each in its own precision."""
    rollout = report.rollout
    old = rollout.old
    by_name = {
        "old.logprobs": old.logprobs,
        "old.entropy": old.entropy,
        "old.mean": old.mean,
        "old.std": old.std,
        "old.v_coef": old.v_coef,
        "mask": rollout.mask,
        "groups": rollout.groups,
        "advantages": report.advantages,
        "rewards": report.rewards.double(),
        "totals": report.totals,
    }
    by_name |= {f"per_row.{name}": x for name, x in rollout.trace.per_row.items()}
    by_name |= {f"per_group.{name}": x for name, x in rollout.trace.per_group.items()}
    return apart({name: x for name, x in by_name.items() if x is not None})


def write_step(run: Path, report: StepReport) -> None:
    """Record a step, replacing an earlier record of it.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    folder = folder_of(run, report.step)
    kept = tensors(report)
    device = report.rollout.old.logprobs.device
    notes = {"conditions": conditions(device), "rewards": list(report.reward_names)}
    try:
        with replacing(folder) as temporary:
            temporary.mkdir(parents=True)
            rows = _rows(temporary, report, kept)
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (temporary / ROWS).write_text(lines, encoding="utf-8")
            save_file(kept, temporary / TRACE, metadata={"grpokit": json.dumps(notes)})
            shutil.rmtree(folder, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise RunError(f"The record {folder} cannot be written: {error}.") from error


def _rows(folder: Path, report: StepReport, kept: dict[str, Tensor]) -> list[dict[str, Any]]:
    """The rows of `samples.jsonl`; outputs of numbers come to the tensors, pictures into `folder`."""
    groups = report.rollout.groups.tolist()
    prompts = dict(zip(dict.fromkeys(groups), report.prompts, strict=True))  # of each group
    lengths = report.rollout.mask.sum(-1).tolist()
    rewards = report.rewards.tolist()
    totals = report.totals.tolist()
    advantages = report.row_advantages().tolist()
    rows = []
    for i, sample in enumerate(report.rollout.samples):
        cells, numbers = _cells(folder / f"{i:04d}.png", sample.output)
        if numbers is not None:
            kept[f"output.{i:04d}"] = numbers.detach().cpu().contiguous().clone()
        scores = dict(zip(report.reward_names, rewards[i], strict=True))
        rows.append(
            {
                "step": report.step,
                "row": i,
                "group": groups[i],
                "prompt_index": prompts[groups[i]],
                "prompt": sample.prompt.text,
                **cells,
                "info": _plain(sample.info),
                "scores": finite(scores),
                **finite({"reward": totals[i], "advantage": advantages[i]}),
                "decisions": lengths[i],
            }
        )
    return rows


def _cells(file: Path, output: Any) -> tuple[dict[str, Any], Tensor | None]:
    """The cells of an output in its row, and its numbers where it is made of them; a picture is written."""
    if isinstance(output, Image.Image) and output.mode in _AS_PNG:
        output.save(file)
        return {"kind": "picture", "file": file.name}, None
    if isinstance(output, Image.Image):
        raw = torch.frombuffer(bytearray(output.tobytes()), dtype=torch.uint8)
        return {"kind": "raw picture", "mode": output.mode, "size": output.size}, raw
    if isinstance(output, Tensor):
        return {"kind": "tensor"}, output
    try:
        if isinstance(output, (np.ndarray, np.generic)):
            return {"kind": "array"}, torch.from_numpy(np.array(output))
        plain = json.loads(json.dumps(output, default=lambda x: x.item()))  # numbers of numpy in a list
        return {"kind": "tuple" if isinstance(output, tuple) else "plain", "output": plain}, None
    except (TypeError, ValueError, AttributeError, RuntimeError):
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(output))  # an address is another in every process
        return {"kind": "object", "output": text}, None


def _output(folder: Path, row: Mapping[str, Any], kept: Mapping[str, Tensor]) -> Any:
    """What `_cells` wrote, as the rewards saw it."""
    kind = row["kind"]
    name = f"output.{row['row']:04d}"
    if kind == "picture":
        with Image.open(folder / row["file"]) as picture:
            picture.load()
        return picture
    if kind == "raw picture":
        raw = kept[name].numpy().tobytes()
        return Image.frombytes(row["mode"], tuple(row["size"]), raw)
    if kind == "tensor":
        return kept[name]
    if kind == "array":
        return kept[name].numpy()[()]  # of a numpy number the number
    if kind == "object":
        return Described(text=row["output"])
    return tuple(row["output"]) if kind == "tuple" else row["output"]


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `Sample.info` that is JSON."""
    plain = {}
    for name, value in info.items():
        try:
            plain[str(name)] = json.loads(json.dumps(value))
        except (TypeError, ValueError, RecursionError):
            continue
    return plain


def read_step(run: Path, step: int) -> Recorded:
    """Read a recorded step.

    Raises:
        RunError: a file is missing or damaged.
    """
    folder = folder_of(run, step)
    try:
        lines = (folder / ROWS).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        with safe_open(folder / TRACE, framework="pt") as file:
            notes = json.loads(file.metadata()["grpokit"])
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        return Recorded(
            rows=rows,
            outputs=[_output(folder, row, kept) for row in rows],
            reward_names=notes["rewards"],
            tensors=kept,
            conditions=notes["conditions"],
        )
    except (OSError, SyntaxError, ValueError, KeyError, SafetensorError) as error:  # the second is PIL's
        raise RunError(
            f"The record {folder} is damaged: {error_line(error)}. Restore it from a copy, or delete the folder to do "
            "without it."
        ) from error
