"""Run the programs that the suite drives, with what they said in the error when they fail."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path


class CommandError(RuntimeError):
    """A program ended with another status than 0; the message holds its call and the end of its output."""


@dataclass
class Tools:
    """Programs found in `folder` before PATH, with extra environment variables, such as DOCKER_HOST and KUBECONFIG."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        """The environment of every program that is run."""
        path = f"{self.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, **self.environment, "PATH": path}

    def run(
        self, *call: str, stdin: bytes | None = None, timeout: float = 600, cwd: Path | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """Run to the end. Raises CommandError, or subprocess.TimeoutExpired after `timeout` seconds."""
        done = subprocess.run(
            ["env", *call],  # finds the program on the PATH given, not on our own
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout,
            cwd=cwd,
            env=self.variables(),
            check=False,
        )
        if check and done.returncode != 0:
            said = (done.stderr or done.stdout).decode(errors="replace")[-4000:]
            raise CommandError(f"{' '.join(call)[:300]} ended with status {done.returncode}:\n{said}")
        return done

    def output(self, *call: str, stdin: bytes | None = None, timeout: float = 120) -> str:
        """What a program printed, without the last line break. Raises like `run`."""
        return self.run(*call, stdin=stdin, timeout=timeout).stdout.decode().rstrip("\n")
