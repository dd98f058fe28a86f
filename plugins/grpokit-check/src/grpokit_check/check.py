"""What a check is, how it fails, and the checks that policies and rewards share.

A check is a name and a function without arguments. The function raises `CheckError` where the contract is broken, and
`NotChecked` where the check does not apply. Any other error of a component becomes a `CheckError` too.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from grpokit.errors import GrpokitError, error_line, raised_at

if TYPE_CHECKING:
    import pytest

HEAVY = (
    *("torch", "tensorflow", "transformers", "diffusers", "onnxruntime"),
    *("numpy", "PIL", "scipy", "skimage", "cv2", "matplotlib", "pandas"),
)
"""Modules that a plugin's light module must not import."""
S = TypeVar("S")
State = Literal["ok", "failed", "expected failure", "not checked"]


class CheckError(AssertionError):
    """A component breaks its contract: the message says what was expected, what happened, and the usual cause."""

    state: State = "failed"


class NotChecked(unittest.SkipTest):
    """A check does not apply here; the message says why. pytest counts it as skipped, `outcomes` as "not checked"."""

    state: State = "not checked"


class ExpectedFailure(NotChecked):
    """A check fails, and the component's spec expects that."""

    state = "expected failure"


def expect(holds: object, expected: str, actual: str, cause: str) -> None:
    """Raise `CheckError` with the three parts of its message unless `holds`."""
    if not holds:
        raise CheckError(f"Expected {expected}; got {actual}. Usual cause: {cause}.")


def attempt(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a component returns, or the error that it raises: it may raise anything."""
    try:
        return call(*arguments)
    except (Exception, SystemExit) as error:
        return error


def error_text(error: BaseException) -> str:
    """An error on one line, with its place where it is not grpokit's own.

    >>> error_text(GrpokitError("No file."))
    'GrpokitError: No file'
    """
    return error_line(error) if isinstance(error, GrpokitError) else f"{error_line(error)} {raised_at(error)}"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One named check.

    Attributes:
        name: lower case with hyphens.
        summary: what must hold, in one line.
        test: raises `CheckError` where it does not; `check()` runs it.
        expected_failure: why the component cannot pass it, if its spec says so.
    """

    name: str
    summary: str
    test: Callable[[], None]
    expected_failure: str = ""

    def __call__(self) -> None:
        """Run the check, and restore the global random states of the CPU after it.

        A warning is shown or recorded. It fails no check, even where the caller turns warnings into errors.

        Raises:
            CheckError: the component breaks the contract, or raised an error of its own.
            NotChecked: the check does not apply to the component, or something that it needs is missing.
            ExpectedFailure: the component breaks the contract, and its spec expects that.
        """
        states = random_states()
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            try:
                self.test()
            except NotChecked:
                raise
            except CheckError as failed:
                if self.expected_failure:
                    raise ExpectedFailure(self.expected_failure) from failed
                raise
            except (Exception, SystemExit) as error:  # a component may raise anything
                cause = "" if isinstance(error, GrpokitError) else " Usual cause: a bug; run this check in a debugger."
                raise CheckError(f"Expected that {self.summary}; got {error_text(error)}.{cause}") from error
            finally:
                torch.set_rng_state(torch.tensor(states["torch"], dtype=torch.uint8))
                np.random.set_state(states["numpy"])
                random.setstate(states["random"])


def check_of(test: Callable[..., None], *arguments: Any) -> Check:
    """The check that a function is: its name has hyphens, and its docstring's first line says what must hold."""
    sentence = (test.__doc__ or "").partition("\n")[0].rstrip(".")
    return Check(
        name=test.__name__.strip("_").replace("_", "-"),
        summary=sentence[:1].lower() + sentence[1:],
        test=partial(test, *arguments),
    )


def checks_of(tests: Iterable[Callable[[S], None]], subject: S, module: str | None) -> Iterator[Check]:
    """The checks that some functions are of a component, and that of the plugin's module which announces it."""
    for test in tests:
        yield check_of(test, subject)
    if module is not None:
        yield check_of(light_plugin, module)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one check.

    Attributes:
        name: the check's.
        state: "ok"; "failed"; "expected failure" where it failed and the component's spec expects that; "not checked"
            where it does not apply, or needs something that is missing here.
        message: what is wrong, or why nothing was checked; empty for "ok".
    """

    name: str
    state: State
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the check ran and passed."""
        return self.state == "ok"

    @property
    def failed(self) -> bool:
        """Whether the check ran and found a mistake."""
        return self.state == "failed"


def outcomes(checks: Iterable[Check]) -> Iterator[Outcome]:
    """Run checks one after the other; a failure does not stop the next."""
    for check in checks:
        try:
            check()
        except (CheckError, NotChecked) as reason:
            yield Outcome(name=check.name, state=reason.state, message=str(reason))
        else:
            yield Outcome(name=check.name, state="ok")


def parametrize_with_checks(checks: Iterable[Check]) -> pytest.MarkDecorator:
    """Run a pytest test once per check; it takes the argument `check` and calls it.

        @parametrize_with_checks(policy_checks(MyPolicy, ["a red cube", "a blue ball"]))
        def test_my_policy(check):
            check()

    Args:
        checks: from `policy_checks` or `reward_checks`.
    """
    import pytest  # only tests need it

    return pytest.mark.parametrize("check", [pytest.param(check, id=check.name) for check in checks])


def random_states() -> dict[str, Any]:
    """The global random states, in a form that can be compared."""
    name, keys, *rest = np.random.get_state()
    numpy_state = (name, np.asarray(keys).tolist(), *rest)
    return {"torch": torch.get_rng_state().tolist(), "numpy": numpy_state, "random": random.getstate()}


def expect_untouched(before: Mapping[str, Any], what: str) -> None:
    """Fail where a global random state has changed since `before`."""
    after = random_states()
    names = [name for name, state in before.items() if state != after[name]]
    expect(not names, f"that {what} leaves the global random states alone",
           f"a change in the state of {', '.join(names)}",
           "a draw from the global generator, or seeding it; draw from the seeds, or from a generator of your "
           "own")  # fmt: skip


@contextmanager
def expect_unchanged(tensors: Mapping[str, Tensor | None], example: str) -> Iterator[None]:
    """Fail where one of these tensors is changed inside the context; `example` is arithmetic that would do it."""
    given = {name: x for name, x in tensors.items() if x is not None}
    before = {name: x.detach().clone() for name, x in given.items()}
    yield
    changed = [name for name, x in given.items() if not torch.equal(x, before[name])]
    expect(not changed, "arguments that stay as they are", f"a change of {', '.join(changed)}",
           f"arithmetic in place, such as `{example}`")  # fmt: skip


def light_plugin(module: str) -> None:
    """The plugin's module imports nothing heavy."""
    result = in_new_python(f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])")
    expect(not result.returncode, f"that '{module}' can be imported", result.stderr.strip()[-400:],
           "a missing dependency")  # fmt: skip
    expect(not result.stdout.strip(), f"that importing '{module}' imports none of {', '.join(HEAVY)}",
           ", ".join(result.stdout.split()),
           "an import at the top of the module with the hooks; name the factory as a string and import in its "
           "module")  # fmt: skip


def in_new_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in another Python process with the same module path; its output is captured."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
