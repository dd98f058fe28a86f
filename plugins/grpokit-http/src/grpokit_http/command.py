"""`grpokit serve-reward`: a reward for runs on other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpokit.errors import UsageError, one_line


def serve_reward(
    name: Annotated[str, typer.Argument(help="A reward: a plugin's name for it, or package.module:function.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its parameters.", show_default=False)
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on. Another than this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 8009,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A file with the token; else GRPOKIT_REWARD_TOKEN has it.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=256, help="Processes that the reward runs in.")] = 1,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.001, help="Seconds that one call of the reward may take.")
    ] = None,
    max_body: Annotated[int, typer.Option("--max-body", min=1, help="Megabytes that a request may have.")] = 256,
) -> None:
    """Serve a reward to runs on other machines.

    Such a run has `placement: {http: URL}` at the reward. Ctrl-C or SIGTERM finishes what is being scored, and ends it;
    a second one ends it at once.
    """
    from grpokit import PooledReward
    from grpokit.config.overrides import parse_parameters
    from grpokit.files import read_text
    from grpokit_http.client import secret
    from grpokit_http.reward import TOKEN
    from grpokit_http.service import RewardService, is_loopback

    token = read_text(token_file, kind="token file", error=UsageError).strip() if token_file else secret(TOKEN)
    if token_file and not token:
        raise UsageError(f"{token_file} is empty; expected a token.")
    if not token and not is_loopback(host):
        raise UsageError(
            f"Without a token anybody who reaches {host} could use the reward. Put one into {TOKEN}, or into a file "
            "and name it with --token-file; the run needs the same."
        )
    reward = PooledReward(name, parse_parameters(parameters or []), workers=workers, timeout=timeout, per_sample=False)
    try:
        service = RewardService(reward, host, port, token=token, most_body=max_body * 2**20)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"Cannot listen on {host}, port {port}: {one_line(error)}. Give another with --port."
        ) from error
    print(f"serving {name} at {service.address}  (Ctrl-C ends it)", flush=True)
    service.run()
    print(f"scored {service.scored:,} samples")
