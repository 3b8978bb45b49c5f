"""MovieLens-100K as item histories, and the batches that every contender trains on.

In: a cache directory. Out: `Histories`, the item ids of each user in order of time; `Batch`es.
The data is not ours to ship: it is taken from the RecBole wheel, which carries `ml-100k.inter`.
Only where that cannot be had is a set generated, and it says so in its name.
"""

import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

WHEEL = "recbole==1.2.1"
MEMBER = "recbole/dataset_example/ml-100k/ml-100k.inter"
HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
NAMES = {"ml-100k.inter": "MovieLens-100K", "generated.inter": "generated set"}


@dataclass(frozen=True)
class Histories:
    """`users[u]` is what user u consumed, oldest first; the last item is held out for testing."""

    name: str
    users: tuple[tuple[int, ...], ...]
    items: int


@dataclass(frozen=True)
class Batch:
    """history, target: [B, N] ids, 0 past the end; negatives: [K] ids."""

    history: Tensor
    target: Tensor
    negatives: Tensor

    def to(self, device: str) -> "Batch":
        moved = (t.to(device) for t in (self.history, self.target, self.negatives))
        return Batch(*moved)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.history, self.target, self.negatives


def folder() -> Path:
    """Where caches of a user are: $XDG_CACHE_HOME or ~/.cache, and in it a folder of ours."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdpa_inductor"


def obtain(cache: Path) -> Path:
    """The data file: MovieLens-100K, downloaded into `cache` once, else a generated set."""
    path = cache / "ml-100k.inter"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    try:
        download(cache)
        return path
    except (OSError, subprocess.SubprocessError, KeyError, zipfile.BadZipFile) as error:
        print(f"MovieLens-100K cannot be had ({error}); generating a set", file=sys.stderr)
    path = cache / "generated.inter"
    path.write_text(generate())
    return path


def load(path: Path) -> Histories:
    """The histories in a data file."""
    return parse(path.read_text(), NAMES.get(path.name, path.stem))


def download(cache: Path) -> None:
    """Takes the one file out of the wheel; pip finds the wheel, none of its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--dest", str(cache)]
    subprocess.run([*command, WHEEL], check=True, timeout=300)
    wheel = next(cache.glob("recbole-*.whl"), None)
    if wheel is None:
        raise OSError("pip brought no RecBole wheel")
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(MEMBER)
    partial = cache / "ml-100k.partial"
    partial.write_bytes(text)
    partial.rename(cache / "ml-100k.inter")
    wheel.unlink()


def parse(text: str, name: str) -> Histories:
    """RecBole's atomic file: a header, then `user item rating timestamp`, tab-separated."""
    rows = [line.split("\t") for line in text.splitlines()[1:] if line]
    # Ties in time are common (ratings entered in one sitting); the item breaks them.
    events = sorted((int(user), float(when), int(item)) for user, item, _, when in rows)
    ids = {item: i for i, item in enumerate(sorted({item for *_, item in events}), start=1)}
    users: dict[int, list[int]] = {}
    for user, _, item in events:
        users.setdefault(user, []).append(ids[item])
    kept = tuple(tuple(history) for history in users.values() if len(history) >= 3)
    return Histories(name, kept, len(ids))


def generate(users: int = 943, items: int = 1682, seed: int = 0) -> str:
    """A set of MovieLens' size, as a data file: the next item is near the last one, so that there
    is something to learn."""
    rng = random.Random(seed)
    lines = [HEADER]
    for user in range(1, users + 1):
        here = rng.randrange(items)
        for when in range(min(20 + int(rng.expovariate(1 / 86)), 737)):
            here = (here + rng.randrange(1, 9)) % items
            lines.append(f"{user}\t{here + 1}\t1\t{when}")
    return "\n".join(lines) + "\n"


def pad(history: tuple[int, ...], length: int) -> list[int]:
    """The newest `length` items, zeros behind."""
    newest = list(history[-length:])
    return newest + [0] * (length - len(newest))


def batches(
    data: Histories, steps: int, batch: int, length: int, negatives: int, seed: int
) -> Iterator[Batch]:
    """`steps` batches, the same for the same arguments. The held-out items never appear."""
    rng = random.Random(seed)
    for _ in range(steps):
        users = rng.sample(data.users, batch)
        history = [pad(user[:-2], length) for user in users]
        target = [pad(user[1:-1], length) for user in users]
        sampled = rng.sample(range(1, data.items + 1), negatives)
        yield Batch(torch.tensor(history), torch.tensor(target), torch.tensor(sampled))
