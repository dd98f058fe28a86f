"""`grpokit vote`: a page on which people vote on what a run draws."""

from __future__ import annotations

import getpass
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from grpokit.errors import UsageError, one_line


def vote(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder; the page waits until it is there.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 8010,
) -> None:
    """Vote on what a run draws, on a local page.

    The run needs the reward `human-vote`. The page can be ended and started again at any time, and several people may
    vote at once. Ctrl-C ends it.
    """
    from grpokit_vote.service import VoteService

    if os.path.isfile(run):  # unlike Path's, it is False for a name that no file can have
        raise UsageError(f"{run} is a file; expected a run folder.")
    try:
        service = VoteService(run, port)
    except OSError as error:
        raise UsageError(
            f"Cannot listen on port {port}: {one_line(error)}. If another grpokit vote uses it, choose another with "
            "--port; 0 takes a free one."
        ) from error
    if not service.box.folder.exists():
        print(f"{run} asks nothing yet; the page waits for it", flush=True)
    print(f"vote at {service.address}  (Ctrl-C ends it)")
    tunnel = f"ssh -L {service.port}:127.0.0.1:{service.port} {getpass.getuser()}@{platform.node()}"
    print(f"from another computer or a phone, open the same address after\n  {tunnel}", flush=True)
    with suppress(KeyboardInterrupt):
        service.run()
