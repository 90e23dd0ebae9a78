"""The command line: a table of verbs, each imported when it is run, and one place where errors become lines.

A verb is the function `armillary.cli.<verb>.<verb>`; its parameters are its flags. It parses and prints: the
work and every check of a value lie behind it. Exit codes: 0 right, 1 a proof or check failed, 2 bad input,
3 does not fit, 4 the engine failed, 130 interrupted.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from armillary.errors import ArmillaryError, Problem

VERBS = {
    "advise": "Say whether and how a generation fits, how long it takes, and what to type.",
    "check": "Hold a plan against a checkpoint's own tensors.",
    "generate": "Generate a picture or a video, on one device or on several.",
    "serve": "Serve a model over HTTP, as OpenAI's and vLLM-Omni's API.",
    "tiny": "Write a small random-weight Cosmos 3 checkpoint.",
    "verify": "Prove that a layout computes what one process computes.",
}


OTHER_NAMES = {
    "--tp": ("--tensor-parallel-size",),
    "--tp-size": ("--tensor-parallel-size",),
    "--tp-degree": ("--tensor-parallel-size",),
    "--sp": ("--ulysses-degree",),
    "--cfg": ("--guidance-scale", "--cfg-parallel-size"),
    "--width": ("--size",),
    "--height": ("--size",),
    "--resolution": ("--size",),
    "--frames": ("--num-frames",),
    "--duration": ("--seconds",),
    "--shift": ("--flow-shift",),
    "--offload": ("--enable-layerwise-offload",),
    "--out": ("--output",),
}
"""What other tools call a flag."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `armillary` with `arguments` (default: the process's own) and return the exit code."""
    with warnings.catch_warnings():
        warnings.showwarning = _print_once(set())
        try:
            code = _armillary().main(arguments, prog_name="armillary", standalone_mode=False)
        except ArmillaryError as error:
            return _report(error)
        except typer.TyperException as error:
            return _report(ArmillaryError(_usage_problem(error)))
    return code or 0


class VerbCommand(TyperCommand):
    """A command that names all of its bad flags, not only the first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, rest, problems = self._parsed(ctx, args)
        if problems:
            raise ArmillaryError(problems)
        # eager ones first: --help acts before any value is judged
        for param in sorted(self.get_params(ctx), key=lambda param: not param.is_eager):
            try:
                param.handle_parse_result(ctx, values, rest)
            except typer.TyperException as error:
                problems.append(_usage_problem(error))
        if rest:
            problems.append(
                Problem("usage", f"unexpected {' '.join(rest)!r}", f"see {ctx.command_path} --help")
            )
        if problems:
            raise ArmillaryError(problems)
        return rest

    def _parsed(self, ctx: Any, args: list[str]) -> tuple[dict[str, Any], list[str], list[Problem]]:
        """Values by parameter, words left over, and the flags that there are not. An underscore is a dash."""
        words = list(args)
        problems: list[Problem] = []
        while True:
            try:
                values, rest, _ = self.make_parser(ctx).parse_args(args=list(words))
                return values, rest, problems
            except typer.TyperException as error:
                typed = _unknown_flag(error) or ""
                at = [n for n, word in enumerate(words) if word.partition("=")[0] == typed]
                if not at:
                    return {}, [], [*problems, _usage_problem(error)]
                dashed = typed.replace("_", "-")
                if dashed != typed and any(dashed in param.opts for param in self.get_params(ctx)):
                    words[at[0]] = words[at[0]].replace(typed, dashed, 1)
                    continue
                problems.append(_usage_problem(error))
                del words[at[0]]


class VerbGroup(TyperGroup):
    """Lists the verbs from the table, so that `armillary --help` imports none of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and _load_verb(args[0]), rest


def _armillary() -> TyperGroup:
    app = typer.Typer(
        cls=VerbGroup,
        add_completion=False,
        rich_markup_mode=None,  # frames round two lists would double the time that --help takes
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Large diffusion and omni transformers on several devices from one declarative plan.",
    )
    app.callback(invoke_without_command=True)(_top)
    group = typer.main.get_group(app)
    for verb, summary in VERBS.items():
        group.add_command(TyperCommand(verb, help=summary))
    return group


def _top(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        from importlib import metadata

        typer.echo(f"armillary {metadata.version('armillary')}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(2)


def _load_verb(verb: str) -> Any:
    app = typer.Typer(add_completion=False)
    app.command(verb, cls=VerbCommand)(getattr(importlib.import_module(f"armillary.cli.{verb}"), verb))
    return typer.main.get_command(app)


def _usage_problem(error: typer.TyperException) -> Problem:
    ctx = getattr(error, "ctx", None)
    typed = _unknown_flag(error)
    if ctx and typed:
        flags = [flag for param in ctx.command.get_params(ctx) for flag in param.opts if not param.hidden]
        meant = " or ".join(likely_flags(typed, flags))
        fix = f"{meant}, perhaps; " if meant else ""
        return Problem("usage", f"there is no flag {typed}", f"{fix}see {ctx.command_path} --help")
    fix = f"see {ctx.command_path} --help" if ctx else ""
    return Problem(rule="usage", message=error.format_message().rstrip("."), fix=fix)


def _unknown_flag(error: typer.TyperException) -> str | None:
    """The flag that there is not, if that is the error; one without its value has a name too."""
    return getattr(error, "option_name", None) if hasattr(error, "possibilities") else None


def likely_flags(typed: str, flags: Sequence[str]) -> list[str]:
    """The flags that one who typed `typed` may have meant: the same thing under another tool's name, those
    that have all of its words, else those spelt nearly so."""
    names = [name for name in OTHER_NAMES.get(typed, ()) if name in flags]
    words = set(typed.strip("-").split("-"))
    longer = [flag for flag in flags if words <= set(flag.strip("-").split("-"))]
    return names or longer or difflib.get_close_matches(typed, flags, n=2, cutoff=0.75)


def _report(error: ArmillaryError) -> int:
    """One line per problem on stderr; a rank's first traceback above them, because only it says where."""
    if traceback := getattr(error, "traceback", None):
        print(traceback.rstrip(), file=sys.stderr)
    for problem in error.problems:
        print(f"error: {problem}", file=sys.stderr)
    return error.exit_code


def _print_once(printed: set[str]) -> Callable[..., None]:
    """Prints a warning as one line, and not again from another place."""

    def print_warning(message: Warning | str, *_: object, **__: object) -> None:
        line = f"warning: {' '.join(str(message).split())}"
        if line not in printed:
            printed.add(line)
            print(line, file=sys.stderr)

    return print_warning
