"""`python3 -m tests.e2e.clean`: the cluster, our own engine, and everything in the cache folder (up to 40 GB)."""

import shutil

from tests.e2e import engine


def main() -> None:
    """Remove all of it; fine if there is none. Needs nothing but Python."""
    folder = engine.cache_folder()
    if (folder / "tools" / "kind").exists():
        tools = engine.tools_with_docker()
        if engine.answers(tools):
            tools.run("kind", "delete", "cluster", "--name", engine.CLUSTER, timeout=180, check=False)
    engine.stop()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
