"""WebDataset shards: tar archives in which the files of a sample share a name, such as `0001.jpg` and `0001.json`.

Only an index is kept in memory: the texts, and where each picture lies. A picture is read from its shard when its
prompt is asked for, so shards may be larger than memory, and nothing is unpacked.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from PIL.ContainerIO import ContainerIO

from grpokit.errors import DataError, one_line
from grpokit.images import PICTURES


@dataclass(frozen=True)
class Slice:
    """The bytes of a file inside an archive."""

    archive: Path
    start: int
    size: int

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """A file to read, of which no more is read than is asked for."""
        with self.archive.open("rb") as file:
            yield ContainerIO(file, self.start, self.size)

    def read_bytes(self) -> bytes:
        """Its content."""
        with self.opened() as file:
            return file.read()


def samples(shards: Sequence[Path]) -> Iterator[tuple[dict[str, Any], str]]:
    """(columns, where) of each sample: the keys of its `json`, its `txt`, and a `Slice` under a picture's ending.

    Raises:
        DataError: a shard cannot be read, a `json` in it is not an object, or a `txt` is not UTF-8 text.
    """
    for shard in shards:
        name, row = "", dict[str, Any]()
        for member, content in _members(shard):
            ending = member.rpartition("/")[2].partition(".")[2]
            stem = member[: len(member) - len(ending) - 1]
            if stem != name and row:
                yield row, f"{shard}, sample {name}"
                row = {}
            name = stem
            ending = ending.lower()
            if ending == "json":
                try:
                    row.update(json.loads(content.read_bytes()))
                except (ValueError, TypeError, RecursionError) as error:
                    raise DataError(f"{shard}, {member}: expected a JSON object: {one_line(error)}.") from error
            elif f".{ending}".endswith(PICTURES):
                row[ending] = content
            elif ending == "txt":
                try:
                    row[ending] = content.read_bytes().decode("utf-8-sig").strip()
                except UnicodeDecodeError as error:
                    raise DataError(f"{shard}, {member}: expected UTF-8 text: {one_line(error)}.") from error
        if row:
            yield row, f"{shard}, sample {name}"


def _members(shard: Path) -> Iterator[tuple[str, Slice]]:
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                if member.isfile():
                    yield member.name, Slice(shard, member.offset_data, member.size)
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"The shard {shard} cannot be read as a tar archive: {one_line(error)}.") from error
