"""The Hugging Face hub, asked in bounded time: left to itself its client tries a silent server again for minutes."""

from typing import Any, Literal

from pipeline.errors import UserError

TIMEOUT_S = 4.0  # of connecting, and of each read
_silent = False


class Unreachable(UserError):
    """The hub did not answer, or HF_HUB_OFFLINE forbids to ask it."""


def info(kind: Literal["model", "data set"], name: str, revision: str | None, source: str, files: bool = False) -> Any:
    """What the hub says of a repository: its commit (`sha`), files (`siblings`; with sizes if `files`), and its card.

    One request, not repeated. Raises Unreachable, or UserError for what is not there; both begin with `source`.
    """
    import httpx2
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    api = HfApi()
    ask: Any = api.model_info if kind == "model" else api.dataset_info
    global _silent
    try:
        about = ask(name, revision=revision, timeout=TIMEOUT_S, files_metadata=files)
    except HFValidationError:
        raise UserError(f"{source}: {name!r} is no name of a {kind} on the hub; expected OWNER/NAME") from None
    except GatedRepoError:
        raise UserError(f"{source}: the {kind} {name} is gated; accept its terms on the hub and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise UserError(f"{source}: the hub has no {kind} {name}, or it is private; then set HF_TOKEN") from None
    except RevisionNotFoundError:
        raise UserError(f"{source}: the {kind} {name} has no revision {revision!r} on the hub") from None
    except (HfHubHTTPError, httpx2.HTTPError, ValueError, OSError) as error:
        words = str(error).strip().split("\n")[0].split(". ")[0] or type(error).__name__
        _silent = True
        raise Unreachable(
            f"{source}: the hub {constants.ENDPOINT} cannot be asked for {name}: {words}; "
            "expected a network to it, HF_ENDPOINT with the address of a mirror, or a folder or s3:// URI"
        ) from error
    _silent = False
    return about


def silent() -> bool:
    """Whether the hub has not answered `info` in this process, so that only copies of an earlier visit are of use."""
    return _silent


def cached(name: str, file: str, revision: str | None) -> bool:
    """Whether this machine has the file of a model from an earlier visit."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, file, revision=revision), str)
