"""The rollout record: all samples of a step with their decisions and scores, in files that other tools can read.

`rollouts/step_000001/` holds `samples.parquet` (one row per sample), the pictures beside it, and `trace.safetensors`
(decisions, log-probs, advantages, in their own precision). A folder is complete or not there. `grpokit score` and
`grpokit redraw` read it; pyarrow is imported only where a record is written or read.
"""

from __future__ import annotations

import itertools
import json
import math
import numbers
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
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpokit.errors import RunError, UsageError, typed_line
from grpokit.files import replacing, step_folders, step_name
from grpokit.processes.joining import join
from grpokit.run_folder.names import ROLLOUTS
from grpokit.tracking.step_report import StepReport
from grpokit.training.checkpoint import apart

FORMAT = 1
SAMPLES, TRACE = "samples.parquet", "trace.safetensors"
_AS_PNG = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")  # these come back from a PNG as they were
_NUMBERS = {"bool": bool, "int": int, "float": float}
_AS_BYTES = ("CMYK", "F", "HSV", "I", "LAB", "RGBX", "YCbCr")


@dataclass(frozen=True, kw_only=True)
class Described:
    """Stands for a recorded output that is neither text nor picture nor numbers: only its description was kept."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A step as `samples.parquet` and the pictures hold it.

    Attributes:
        step: its number, from 1.
        groups: [B] int64 group ids.
        prompts: B indices into the training prompts.
        texts: B texts of the prompts.
        outputs: B outputs as the rewards saw them, or `Described`; tuples and lists are plain ones of Python's numbers.
        infos: B mappings, `Sample.info` as far as it is JSON, and as JSON gives it back: tuples are lists.
        reward_names: R names.
        rewards: [B, R] fp64, NaN where a reward could not score.
        total: [B] fp64, their weighted sum.
        advantages: [B] fp64; the mean over a row's decisions where each has its own.
        conditions: what the numbers may depend on, as `conditions()` gave it then.
    """

    step: int
    groups: Tensor
    prompts: Sequence[int]
    texts: Sequence[str]
    outputs: Sequence[Any]
    infos: Sequence[Mapping[str, Any]]
    reward_names: Sequence[str]
    rewards: Tensor
    total: Tensor
    advantages: Tensor
    conditions: Mapping[str, Any]


def require() -> None:
    """Make sure that records can be written and read.

    Raises:
        UsageError: pyarrow is not installed; with the command that installs it.
    """
    _arrow()


def folder_of(run: Path, step: int) -> Path:
    """Where the record of a step stands."""
    return run / ROLLOUTS / step_name(step)


def steps(run: Path) -> list[int]:
    """The recorded steps of a run, ascending."""
    return [step for step, _ in step_folders(run / ROLLOUTS)]  # a folder is whole, or damaged since


def cut(run: Path, completed: int) -> None:
    """Delete what lies beyond `completed` steps, and what an interrupted write has left."""
    for step, place in step_folders(run / ROLLOUTS):
        if step > completed:
            shutil.rmtree(place)
    for place in (run / ROLLOUTS).glob(".step_*"):
        shutil.rmtree(place)


def conditions(device: torch.device) -> dict[str, Any]:
    """What the last bits of a computation may depend on besides its input."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else f"cpu ({torch.backends.cpu.get_cpu_capability()})",
        "threads": torch.get_num_threads(),
        "processes": join().size,
        "torch": torch.__version__,
    }


def write(run: Path, report: StepReport) -> Path:
    """Record a step, replacing an earlier record of it; returns its folder.

    The folder gets its name once all of it is written, so a killed process leaves no half of a record.

    Args:
        run: the run folder.
        report: the step.

    Raises:
        UsageError: pyarrow is missing, or a picture has a mode that cannot be kept exactly.
        RunError: the disk is full or the folder cannot be written.
    """
    arrow, parquet = _arrow()
    folder = folder_of(run, report.step)
    try:
        with replacing(folder) as temporary:
            temporary.mkdir(parents=True)
            notes = {"format": FORMAT, "conditions": conditions(report.rollout.old.logprobs.device)}
            table = arrow.table(_columns(arrow, temporary, report), metadata={"grpokit": json.dumps(notes)})
            parquet.write_table(table, temporary / SAMPLES, write_page_checksum=True)
            save_file(tensors(report), temporary / TRACE)
            shutil.rmtree(folder, ignore_errors=True)
    except (OSError, SafetensorError, arrow.ArrowException) as error:
        raise RunError(f"The record {folder} cannot be written: {error}.") from error
    return folder


def tensors(report: StepReport) -> dict[str, Tensor]:
    """A step's tensors on the CPU, each in its own precision, under the names that `trace.safetensors` uses."""
    rollout = report.rollout
    by_name = {f"old.{name}": getattr(rollout.old, name) for name in ("logprobs", "entropy", "mean", "std", "v_coef")}
    by_name |= {"mask": rollout.mask, "groups": rollout.groups, "advantages": report.advantages}
    by_name |= {f"per_row.{name}": x for name, x in rollout.trace.per_row.items()}
    by_name |= {f"per_group.{name}": x for name, x in rollout.trace.per_group.items()}
    return apart({name: x for name, x in by_name.items() if x is not None})


def read(run: Path, step: int) -> Recorded:
    """Read the samples of a recorded step.

    Raises:
        UsageError: pyarrow is missing, or the record was written by a newer grpokit.
        RunError: a file is missing or damaged.
    """
    arrow, parquet = _arrow()
    folder = folder_of(run, step)
    path = folder / SAMPLES
    try:
        table = parquet.read_table(path, page_checksum_verification=True)
        notes = json.loads(table.schema.metadata[b"grpokit"])
        if notes["format"] > FORMAT:
            raise UsageError(f"The record {folder} has format {notes['format']}; this grpokit reads up to {FORMAT}.")
        names = [n.removeprefix("rewards/") for n in table.column_names if n.startswith("rewards/")]
        columns = {name: table[name].to_pylist() for name in table.column_names if name not in ("logprobs", "mask")}
        outputs = []
        for row in range(table.num_rows):
            path = folder / (columns["file"][row] or SAMPLES)
            outputs.append(_output(path, {name: column[row] for name, column in columns.items()}))
        path = folder / SAMPLES
        return Recorded(
            step=step,
            groups=torch.tensor(columns["group"], dtype=torch.int64),
            prompts=columns["prompt_index"],
            texts=columns["prompt"],
            outputs=outputs,
            infos=[json.loads(text) for text in columns["info"]],
            reward_names=names,
            rewards=torch.tensor([_numbers_or_nan(columns[f"rewards/{n}"]) for n in names], dtype=torch.float64).T,
            total=torch.tensor(_numbers_or_nan(columns["reward"]), dtype=torch.float64),
            advantages=torch.tensor(columns["advantage"], dtype=torch.float64),
            conditions=notes["conditions"],
        )
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, SafetensorError, arrow.ArrowException) as error:
        raise _damaged(path, error) from error


def read_trace(run: Path, step: int) -> dict[str, Tensor]:
    """Read the tensors of a recorded step, named as by `tensors`.

    Raises:
        RunError: the file is missing or damaged.
    """
    path = folder_of(run, step) / TRACE
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def identity(output: Any) -> tuple[Any, ...]:
    """What has to be equal where two outputs are the same to the bit.

    >>> identity("4") == identity("4"), identity((0.0, 1.0)) == identity((-0.0, 1.0))
    (True, False)
    """
    if isinstance(output, Image.Image):
        palette = output.convert("RGBA").tobytes() if output.mode == "P" else b""
        return "picture", output.mode, output.size, output.tobytes(), palette
    kind, text, values = _described(output)
    return kind, text, None if values is None else (values.shape, values.tobytes())


def _columns(arrow: Any, folder: Path, report: StepReport) -> dict[str, Any]:
    """The columns of `samples.parquet`; pictures are written into `folder`."""
    rollout, samples = report.rollout, report.rollout.samples
    groups, mask = rollout.groups.tolist(), rollout.mask.cpu()
    place = {group: i for i, group in enumerate(dict.fromkeys(groups))}  # of a group, among the step's
    cells = [_cells(folder, row, sample.output) for row, sample in enumerate(samples)]
    rewards = report.rewards.double()
    columns = {
        "step": arrow.array([report.step] * len(samples), arrow.int32()),
        "row": arrow.array(range(len(samples)), arrow.int32()),
        "group": arrow.array(groups, arrow.int64()),
        "prompt_index": arrow.array([report.prompts[place[g]] for g in groups], arrow.int64()),
        "prompt": arrow.array([sample.prompt.text for sample in samples], arrow.string()),
        "output_type": arrow.array([c["output_type"] for c in cells], arrow.string()),
        "output": arrow.array([c.get("output") for c in cells], arrow.string()),
        "file": arrow.array([c.get("file") for c in cells], arrow.string()),
        "output_values": arrow.array([c.get("output_values") for c in cells], arrow.list_(arrow.float64())),
        "output_shape": arrow.array([c.get("output_shape") for c in cells], arrow.list_(arrow.int32())),
        "info": arrow.array([_json(sample.info) for sample in samples], arrow.string()),
    }
    for name, column in zip(report.reward_names, rewards.T, strict=True):
        columns[f"rewards/{name}"] = _floats(arrow, column)
    columns["reward"] = _floats(arrow, report.totals)
    columns["advantage"] = _floats(arrow, report.row_advantages())
    if report.advantages.dim() == 2:
        columns["advantages"] = _lists(arrow, report.advantages.detach().cpu().double())
    columns["decisions"] = arrow.array(mask.sum(-1).tolist(), arrow.int32())
    columns["mask"] = _lists(arrow, mask)
    logprobs = rollout.old.logprobs.detach().cpu()
    columns["logprobs"] = _lists(arrow, logprobs.to(torch.promote_types(logprobs.dtype, torch.float32)))
    return columns


def _lists(arrow: Any, x: Tensor) -> Any:
    """[B, T] -> a column with a list in each row."""
    offsets = np.arange(len(x) + 1, dtype=np.int32) * x.shape[1]
    return arrow.ListArray.from_arrays(offsets, x.ravel().numpy())


def _floats(arrow: Any, column: Tensor) -> Any:
    """[B] -> a column of numbers; NaN, where there is no score, becomes null."""
    return arrow.array([None if math.isnan(x) else x for x in column.tolist()], arrow.float64())


def _numbers_or_nan(column: Sequence[float | None]) -> list[float]:
    return [math.nan if x is None else x for x in column]


def _cells(folder: Path, row: int, output: Any) -> dict[str, Any]:
    """The cells of an output in its row of the table."""
    if isinstance(output, Image.Image):
        return {"output_type": "picture", "file": _write_picture(folder, row, output)}
    kind, text, values = _described(output)
    if values is None:
        return {"output_type": kind, "output": text}
    return {"output_type": kind, "output_values": values.ravel().tolist(), "output_shape": list(values.shape)}


def _output(path: Path, cells: Mapping[str, Any]) -> Any:
    """What `_cells` wrote, as the rewards saw it."""
    kind, _, dtype = cells["output_type"].partition(" ")
    if kind == "picture":
        return _read_picture(path)
    if kind == "text":
        return cells["output"]
    if kind == "object":
        return Described(text=cells["output"])
    values = np.array(cells["output_values"], dtype=np.float64).reshape(cells["output_shape"])
    if kind == "scalar":
        return np.dtype(dtype).type(values)
    if kind == "tensor":
        return torch.from_numpy(values).to(getattr(torch, dtype))
    if kind == "array":
        return values.astype(dtype)
    types = itertools.cycle(dtype.split() or ["float"])  # earlier records name none
    plain = [_NUMBERS[name](x) for name, x in zip(types, values.ravel().tolist(), strict=False)]
    return plain[0] if kind == "number" else tuple(plain) if kind == "tuple" else plain


def _described(output: Any) -> tuple[str, str, np.ndarray[Any, Any] | None]:
    """An output's type, and its text or its numbers."""
    if isinstance(output, Described):
        return "object", output.text, None
    if isinstance(output, str):
        try:
            output.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which no text file can hold
            return "object", ascii(output), None
        return "text", str(output), None
    kind, array = _numeric(output)
    values = array.astype(np.float64)
    if kind and np.array_equal(values.astype(array.dtype), array, equal_nan=array.dtype.kind == "f"):
        return kind, "", values
    return "object", re.sub(r" at 0x[0-9a-f]+", "", repr(output)), None  # an address is another in every process


def _numeric(output: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """The type and the values of an output that is made of numbers; else an empty type."""
    if isinstance(output, Tensor) and not output.is_complex():
        here = output.detach().cpu()
        return f"tensor {str(here.dtype).removeprefix('torch.')}", (
            here.double() if here.is_floating_point() else here  # numpy has no bfloat16
        ).numpy()
    if isinstance(output, (np.ndarray, np.generic)) and output.dtype.kind in "biuf":
        return f"{'array' if isinstance(output, np.ndarray) else 'scalar'} {output.dtype.str}", np.asarray(output)
    items = output if isinstance(output, (tuple, list)) else [output]
    if items and all(isinstance(x, numbers.Real) for x in items):
        kind = "tuple" if isinstance(output, tuple) else "list" if isinstance(output, list) else "number"
        types = [
            "bool" if isinstance(x, bool) else "int" if isinstance(x, numbers.Integral) else "float" for x in items
        ]
        values = np.asarray(items[0] if kind == "number" else items)
        if values.dtype.kind in "biuf":
            return " ".join([kind, *(types if len(set(types)) > 1 else types[:1])]), values
    return "", np.empty(0)


def _write_picture(folder: Path, row: int, picture: Image.Image) -> str:
    if picture.mode in _AS_PNG:
        name = f"{row:04d}.png"
        picture.save(folder / name)
        return name
    if picture.mode not in _AS_BYTES:
        raise UsageError(
            f"The output of row {row} is a picture of the mode '{picture.mode}', which cannot be recorded exactly; "
            f"expected one of {', '.join((*_AS_PNG, *_AS_BYTES))}. Let the policy convert it, or set run.record=false."
        )
    name = f"{row:04d}.safetensors"
    raw = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    size = {"mode": picture.mode, "width": str(picture.width), "height": str(picture.height)}
    save_file({"bytes": raw}, folder / name, metadata=size)
    return name


def _read_picture(path: Path) -> Image.Image:
    if path.suffix == ".png":
        with Image.open(path) as picture:
            picture.load()
        return picture
    with safe_open(path, framework="pt") as file:
        size, raw = file.metadata(), file.get_tensor("bytes")
    return Image.frombytes(size["mode"], (int(size["width"]), int(size["height"])), raw.numpy().tobytes())


def _json(info: Mapping[str, Any]) -> str:
    """The part of `Sample.info` that is JSON."""
    plain = {}
    for name, value in info.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            continue
        plain[str(name)] = value
    return json.dumps(plain)


def _arrow() -> tuple[Any, Any]:
    """pyarrow and its part for Parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("The rollout record needs pyarrow. Run: pip install 'grpokit[record]'") from error
    return pyarrow, pyarrow.parquet


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(
        f"The record {path} is damaged: {typed_line(error)}. Put it back from a copy, or delete "
        f"{path.parent} to do without this step's record."
    )
