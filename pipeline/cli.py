"""The commands. An expected error is one line for each problem and an exit status; no traceback without --debug."""

import io
import json
import logging
import os
import shlex
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pipeline.config import Config
from pipeline.errors import PipelineError, UserError


class Command(click.Command):
    """A command whose help ends with an example."""

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        self.params.append(
            click.Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error.")
        )

    def format_epilog(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """The example, as it is typed."""
        with formatter.section("Example"):
            for line in self.example.splitlines():
                formatter.write_text(line)


def _job(command: Any) -> Any:
    """The arguments that `train` and `check` have in common."""
    command = click.argument("overrides", nargs=-1, metavar="[key.sub=value ...]")(command)
    return click.option("-c", "--config", "file", metavar="FILE", help="YAML file of the job.")(command)


def _run(command: Any) -> Any:
    """The arguments of commands on one run."""
    command = click.option("--storage", metavar="ADDRESS", help="Where RUN lies, if it is a name.")(command)
    return click.argument("run", metavar="RUN")(command)


def _as_path(_: click.Context, __: click.Parameter, text: str) -> Path:
    if not text:
        raise UserError("DIR: is empty; expected the path of a new or empty folder")
    return Path(text)


_folder = click.argument("folder", metavar="DIR", callback=_as_path)
_as_json = click.option("--json", "as_json", is_flag=True, help="For scripts.")


def _config(file: str | None, overrides: tuple[str, ...]) -> Config:
    from pipeline import settings

    return settings.load(file, list(overrides), os.environ)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pipeline")
def app() -> None:
    """Fine-tuning with Ray Train and Accelerate.

    Example:  pipeline train -c configs/banking77.yaml training.epochs=3
    """


@app.command(cls=Command, example="pipeline train -c configs/banking77.yaml training.epochs=3")
@_job
def train(file: str | None, overrides: tuple[str, ...]) -> None:
    """Check everything, then train; the same run name again continues it."""
    config = _config(file, overrides)
    from pipeline.launch import train as start
    from pipeline.summary import show_result

    show_result(start(config), config, Console())


@app.command(cls=Command, example="pipeline check -c configs/banking77.yaml scaling.workers=4")
@_job
@_as_json
def check(file: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check configuration, data, storage and capacity, and train nothing."""
    config = _config(file, overrides)
    from pipeline.launch import check as run_checks

    rows = run_checks(config)
    if as_json:
        keys = [{"check": row.name, "passed": row.passed, "found": row.found, "details": row.details} for row in rows]
        print(json.dumps(keys, indent=1))
    else:
        from pipeline.summary import show_checks

        show_checks(rows, Console())
    problems = [row.found for row in rows if not row.passed]
    if problems:
        raise UserError(*problems)


@app.group()
@click.pass_context
def runs(context: click.Context) -> None:
    """Read runs back from storage.

    Example:  pipeline runs list s3://bucket/prefix
    """
    # Ends like Ctrl-C, so that what is half written is removed.
    before = signal.signal(signal.SIGTERM, _terminated)
    context.call_on_close(lambda: signal.signal(signal.SIGTERM, before))


def _terminated(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


@runs.command("list", cls=Command, example="pipeline runs list s3://bucket/prefix")
@click.argument("storage", required=False)
@_as_json
def list_runs(storage: str | None, as_json: bool) -> None:
    """List the runs under an address (without one: the embedded store), newest first."""
    from pipeline.runs import opened, summaries
    from pipeline.summary import show_list

    with opened(storage) as store:
        found = summaries(store)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    show_list(found, Console())


@runs.command(
    cls=Command, example="pipeline runs show banking77\npipeline runs show s3://bucket/prefix/banking77 --json"
)
@_run
@_as_json
def show(run: str, storage: str | None, as_json: bool) -> None:
    """Show a run, given by name, path or URI: result, history, checkpoints."""
    from pipeline.runs import describe, found
    from pipeline.summary import show_run

    with found(run, storage) as store:
        facts = describe(store)
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        show_run(facts, shlex.join([run, *([] if storage is None else ["--storage", storage])]), Console())


@runs.command("export", cls=Command, example="pipeline runs export banking77 ./model --checkpoint last")
@_run
@_folder
@click.option("--checkpoint", "which", type=click.Choice(["best", "last"]), default="best", show_default=True)
@click.option("--adapter-only", is_flag=True, help="Of a run with LoRA its adapters, not the merged model.")
def export_run(run: str, folder: Path, which: Any, storage: str | None, adapter_only: bool) -> None:
    """Write the model of RUN into DIR, a new or empty folder, as `from_pretrained` loads it."""
    from pipeline.destination import filled
    from pipeline.runs import found, loader, model_into

    with filled(folder) as partial, found(run, storage) as store:
        kind = loader(store, adapter_only)
        name = model_into(store, partial, which, adapter_only)
    print(f"{name} is in {folder}; load it with {kind}.from_pretrained({str(folder)!r})")


@runs.command("copy", cls=Command, example="pipeline runs copy banking77 ./banking77-run")
@_run
@_folder
@click.option("--checkpoints", is_flag=True, help="The complete checkpoints too, so that the run can go on from there.")
def copy_run(run: str, folder: Path, checkpoints: bool, storage: str | None) -> None:
    """Write the files of RUN, with its logs and metrics, into DIR, a new or empty folder."""
    from pipeline.destination import filled
    from pipeline.runs import copy, found

    with filled(folder) as partial, found(run, storage) as store:
        uri, count = store.uri, copy(store, partial, checkpoints)
    print(f"{count} files of {uri} are in {folder}")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script; ends the process with the exit status."""
    sys.exit(run_command(sys.argv[1:] if arguments is None else arguments))


def run_command(arguments: list[str]) -> int:
    """The exit status of a command: 0, 1 failed, 2 wrong input, 130 interrupted; 143 leaves as SystemExit."""
    debug = "--debug" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where it is ASCII, names that are not are told as escapes
            stream.reconfigure(errors="backslashreplace")
    try:
        Path.cwd()
    except FileNotFoundError:
        return _say(["the current folder was deleted; change to another one"], 2)
    _quiet(debug)
    try:
        status: Any = app(args=arguments, prog_name="pipeline", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _say([error.format_message()], 2)
    except (KeyboardInterrupt, click.exceptions.Abort):
        goes_on = "; the same command continues the run" if arguments[:1] == ["train"] else ""
        return _say([f"interrupted{goes_on}"], 130)
    except PipelineError as error:
        if debug:
            raise
        return _say(error.problems, error.exit_status)
    except Exception as error:
        if debug:
            raise
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        return _say([f"{type(error).__name__}: {words} (--debug shows where)"], 1)
    return int(status or 0)


def _say(problems: list[str], status: int) -> int:
    for problem in problems:
        print(f"error: {' '.join(problem.split())}", file=sys.stderr)
    return status


def _quiet(debug: bool) -> None:
    """Only our own words: what libraries tell their developers would bury them."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("pipeline").setLevel(logging.DEBUG if debug else logging.INFO)
    # Nobody is told of a run: the hub's client would ask its server for a list of programs first, and wait for it.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if debug:
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("ray").setLevel(logging.ERROR)


if __name__ == "__main__":
    main()
