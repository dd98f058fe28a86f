"""The commands that show runs: report, which writes a page, and watch, which serves it while the run trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpokit.cli.app import app
from grpokit.errors import counted

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN [RUN]...", help="Run folders; several are compared.", show_default=False)
]


@app.command()
def report(
    folders: Runs,
    out: Annotated[Path | None, typer.Option("--out", help="The page's file.", show_default=False)] = None,
) -> None:
    """Write a run's report again, or compare runs.

    The report is report.html in the run folder. A comparison is compare.html in the last run's folder.
    """
    from grpokit import report as reports

    if len(folders) == 1:
        print(f"report: {reports.write(folders[0], out=out)}")
    else:
        print(f"comparison: {reports.compare(*folders, out=out)}")


@app.command()
def watch(
    folders: Runs,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 8008,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Follow runs on a local page while they train.

    It is the page of report.html, and shows new steps and samples as they are written. It only reads the run folders,
    so it can be started and ended at any time. Ctrl-C ends it.
    """
    import webbrowser

    from grpokit.report.watch import serving

    with serving(folders, port=port) as server:
        print(f"watching {counted(len(folders), 'run')} at {server.address}  (Ctrl-C ends it)", flush=True)
        for folder in folders:
            if not (folder / "config.yaml").is_file():
                print(f"{folder} is not a run folder yet; waiting", flush=True)
        if browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nstopped watching")
