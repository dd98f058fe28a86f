"""`grpokit new`: writes the package of a new component."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpokit.errors import plural
from grpokit_check.scaffold import write


def new(
    what: Annotated[
        str,
        typer.Argument(
            metavar="reward|policy|advantage|objective|modifier|preset|evaluation|world|dataset", help="What to make."
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What configs will call it, such as sharp-edges.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where to make the folder grpokit-NAME.")] = Path(),
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="A reward of image (the default) or text; a policy of text (the default), image or flow."
        ),
    ] = None,
) -> None:
    """Write the package of a new component.

    The package works and has tests. Edit it to make it your own.
    """

    package = write.new(what, name, folder=folder, kind=kind)
    print(f"{package.folder} holds a working {what} in {plural(len(package.files), 'file')}. Next:\n")
    for line in package.next_steps:
        print(f"  {line}")
