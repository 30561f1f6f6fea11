"""What is printed at the end of a run, and when it is looked at again."""

from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.config import Config
from pipeline.result import Result, is_metric, number


def _metrics(values: dict[str, Any]) -> str:
    return ", ".join(f"{key[5:]} {number(value)}" for key, value in values.items() if is_metric(key))


def show_result(result: Result, config: Config, console: Console) -> None:
    """The table at the end of `pipeline train`, the address of the run, and what to type next."""
    if result.already:
        console.print(
            f"The run {result.name} is complete: {result.steps} steps, {result.epochs:g} epochs. Nothing to train."
        )
    table = Table(show_header=False)
    for entry in result.history:
        table.add_row(f"epoch {entry['epoch']:.2f}, step {entry['step']}", _metrics(entry))
    table.add_row("steps", f"{result.steps} on {result.world_size} workers ({result.strategy})")
    if result.resumed_from_step:
        table.add_row("resumed", f"from step {result.resumed_from_step}, attempt {result.attempts}")
    table.add_row(
        "rows", f"{result.train_rows:,} train, {result.eval_rows:,} validation, {result.truncated_rows:,} cut"
    )
    table.add_row("time", f"{result.seconds:.0f} s, {result.train_seconds:.0f} s in optimizer steps")
    table.add_row("waiting for data", f"{result.data_wait_share:.1%} of the steps' time")
    table.add_row("best checkpoint", result.best_checkpoint)
    console.print(table)
    embedded = config.storage.path is None
    console.print(f"The run lies at {result.uri}" + (" (the embedded S3 server)" if embedded else ""), soft_wrap=True)
    address = result.name if embedded else result.uri
    console.print(f"Next:  pipeline runs export {address} ./{result.name}-model", soft_wrap=True)


def show_run(facts: dict[str, Any], console: Console) -> None:
    """The table of `pipeline runs show`."""
    table = Table(show_header=False)
    table.add_row("run", facts["uri"])
    table.add_row("status", facts["status"])
    result = facts["result"]
    if result:
        for entry in result["history"]:
            table.add_row(f"epoch {entry['epoch']:.2f}, step {entry['step']}", _metrics(entry))
        table.add_row("steps", f"{result['steps']} on {result['world_size']} workers ({result['strategy']})")
        table.add_row("rows", f"{result['train_rows']:,} train, {result['eval_rows']:,} validation")
        table.add_row("best checkpoint", result["best_checkpoint"])
        table.add_row("last checkpoint", result["last_checkpoint"])
    table.add_row("checkpoints", "\n".join(facts["checkpoints"]) or "none")
    table.add_row("attempts", str(len(facts["attempts"])))
    table.add_row("logs", "\n".join(facts["logs"]) or "none")
    console.print(table)
