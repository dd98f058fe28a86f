"""WebDataset shards: tar archives in which the files of a sample share a name, such as `0001.jpg` and `0001.json`.

Only an index is kept in memory: the texts, and where each picture lies. A picture is read from its shard when its
prompt is asked for, so shards may be larger than memory, and nothing is unpacked.
"""

from __future__ import annotations

import itertools
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpokit import files
from grpokit.data.sequences import Stored
from grpokit.errors import DataError, one_line
from grpokit.images import PICTURES


def samples(shard: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, columns) of each sample: the keys of its `json`, its `txt`, and a `Stored` under a picture's ending.

    Raises:
        DataError: a shard cannot be read, a `json` in it is not an object, or a `txt` is not UTF-8 text.
    """
    by_name = itertools.groupby(_files(shard), key=lambda part: part[0])
    for name, parts in by_name:
        row: dict[str, Any] = {}
        for _, ending, content in parts:
            try:
                if ending == "json":
                    row |= files.parse_json(content.read_bytes())
                elif f".{ending}".endswith(PICTURES):
                    row[ending] = content
                elif ending == "txt":
                    row[ending] = content.read_bytes().decode("utf-8-sig").strip()
            except (ValueError, TypeError) as error:
                kind = "a JSON object" if ending == "json" else "UTF-8 text"
                raise DataError(f"{shard}, {name}.{ending}: expected {kind}: {one_line(error)}.") from error
        if row:
            yield f"{shard}, sample {name}", row


def _files(shard: Path) -> Iterator[tuple[str, str, Stored]]:
    """(name without its ending, ending, content) of each file in a shard."""
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in filter(tarfile.TarInfo.isfile, archive):
                folder, slash, file = member.name.rpartition("/")
                stem, _, ending = file.partition(".")
                yield f"{folder}{slash}{stem}", ending.lower(), Stored(shard, member.offset_data, member.size)
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"The shard {shard} cannot be read as a tar archive: {one_line(error)}.") from error
