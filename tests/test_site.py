"""The documentation's site: generated pages are up to date, and formulas become MathML."""

from __future__ import annotations

from types import SimpleNamespace

import doctests
import figures
import make_gallery
import make_reference
import mathml
import tables

from grpokit import registry
from grpokit.evaluation.intervals import Summary
from grpokit.registry.entry_points import COMPONENT_KINDS


def test_generated_pages_are_up_to_date(capsys) -> None:
    assert make_reference.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_page_is_noticed(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(make_reference, "ROOT", tmp_path)
    monkeypatch.setattr(make_reference, "pages", lambda: {tmp_path / "cli.md": "new"})
    (tmp_path / "cli.md").write_text("old")
    assert make_reference.main(["--check"]) == 1
    assert "cli.md is out of date: run python tools/make_reference.py" in capsys.readouterr().err


def test_every_key_of_a_config_has_a_meaning() -> None:
    rows = [line for line in make_reference.config_page().splitlines() if line.startswith(("| `", "| [`"))]
    assert len(rows) > 80
    assert [row for row in rows if not row.split(" | ")[1].strip()] == []


def test_formulas_become_mathml_and_code_stays() -> None:
    page = SimpleNamespace(meta={})
    source = "the ratio $r_i * s_i$ costs `$5` or $5\n\n$$\nA = \\frac{a}{b}\n$$\n\n```bash\necho $HOME $PATH$\n```\n"
    text = mathml.on_page_markdown(source, page)
    assert "`$5` or $5" in text
    assert "echo $HOME $PATH$" in text
    html = mathml.on_page_content("<p>formula-1-end</p><p>Here formula-0-end stands.</p>", page)
    assert html.startswith('<div class="formula"><math')
    assert html.count("<mfrac>") == 1
    assert "<p>Here <math" in html
    assert "formula-" not in html.replace('class="formula"', "")


def test_the_code_in_a_table_has_no_backslash_and_long_cells_are_marked() -> None:
    source = "| a | b |\n|---|---|\n| `str \\| None` | \\|A\\| |\n\n`\\|`\n"
    assert tables.on_page_markdown(source).splitlines()[2] == "| `str | None` | \\|A\\| |"
    assert tables.on_page_markdown(source).endswith("`\\|`\n")
    sentence = "A sentence that needs a wide cell."
    html = f'<td style="text-align: right;"><b>{sentence}</b></td><td>short</td>'
    marked = f'<td style="text-align: right;" class="long"><b>{sentence}</b></td><td>short</td>'
    assert tables.on_page_content(html) == marked


def test_the_examples_of_a_docstring_become_code() -> None:
    docstring = SimpleNamespace(value="One.\n\n>>> one()\n1\n>>> two()\n2\n\nThe end.")
    doctests.Doctests().on_object(obj=SimpleNamespace(docstring=docstring))
    assert docstring.value == "One.\n\n```pycon\n>>> one()\n1\n>>> two()\n2\n```\n\nThe end."
    doctests.Doctests().on_object(obj=SimpleNamespace(docstring=None))


def test_the_gallery_has_every_component() -> None:
    page = make_gallery.PAGE.read_text(encoding="utf-8")
    for kind in COMPONENT_KINDS:
        assert [spec.name for _, spec in registry.installed(kind) if f"`{spec.name}`" not in page] == []


def test_a_figure_of_readme_that_runs_no_longer_give_is_named(monkeypatch) -> None:
    first = Summary(means={"reward": 0.2}, ci95={"reward": 0.04})
    last = Summary(means={"reward": 0.888}, ci95={"reward": 0.018})
    monkeypatch.setattr(figures, "measured", lambda _: (first, last))
    row = "| `{}` | {} ± 0.040 | {} ± 0.020 |\n"
    problems = figures.problems(row.format("runs/first", 0.211, 0.9) + row.format("runs/toy-glyph", "0.200", 0.867))
    assert [problem.split(";")[0] for problem in problems] == [
        "runs/first begins with 0.200 ± 0.040",
        "runs/toy-glyph ends with 0.888 ± 0.018",
    ]
