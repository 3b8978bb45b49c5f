"""MovieLens-100K as item histories, and the batches on which every contender trains.

In: a cache folder. Out: `Histories`, which are the item ids of each user in order of time, and
`Batch`es.

The licence does not allow us to ship the data. It is taken from the wheel of RecBole, which has
`ml-100k.inter`. If the wheel cannot be downloaded, a set is generated. Its name says so.
"""

import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

WHEEL = "recbole==1.2.1"
MEMBER = "recbole/dataset_example/ml-100k/ml-100k.inter"
HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
NAMES = {"ml-100k.inter": "MovieLens-100K", "generated.inter": "generated set"}


@dataclass(frozen=True)
class Histories:
    """The histories of all users.

    name:   The name of the set, which the demo prints.
    users:  The item ids of each user, oldest first. The last item is held out for testing.
    items:  The number of items. Ids are 1 to `items`.
    """

    name: str
    users: tuple[tuple[int, ...], ...]
    items: int

    def sample(self, users: int) -> "Histories":
        """Those of so many users, every n-th of them; all where 0 are asked for."""
        count = len(self.users)
        wanted = min(users or count, count)
        chosen = tuple(self.users[i * count // wanted] for i in range(wanted))
        return replace(self, users=chosen)


@dataclass(frozen=True)
class Batch:
    """A batch of B users with N places.

    history:    The ids of items, int64 [B, N], 0 after the end.
    target:     The next item of each place, int64 [B, N], 0 after the end.
    negatives:  The ids of sampled items, int64 [K].
    """

    history: Tensor
    target: Tensor
    negatives: Tensor

    def to(self, device: str) -> "Batch":
        moved = (t.to(device) for t in (self.history, self.target, self.negatives))
        return Batch(*moved)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.history, self.target, self.negatives


def folder() -> Path:
    """Our folder in the user's folder of caches, which is $XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdpa_inductor"


def obtain(cache: Path) -> Path:
    """The path of the data file. MovieLens-100K is downloaded into `cache` once.

    If the download fails, the file is a generated set.
    """
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
    """Read the histories of a data file."""
    return parse(path.read_text(), NAMES.get(path.name, path.stem))


def download(cache: Path) -> None:
    """Download the wheel by pip, without its dependencies, and extract the one file."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--dest", str(cache)]
    subprocess.run([*command, WHEEL], check=True, timeout=120)
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
    """The histories in the text of a RecBole atomic file.

    The file has a header, and then lines `user item rating timestamp`, separated by tabs. Users
    with fewer than 3 items are left out.
    """
    rows = [line.split("\t") for line in text.splitlines()[1:] if line]
    # Many ratings of a user have the same time stamp. The id of the item decides their order.
    events = sorted((int(user), float(when), int(item)) for user, item, _, when in rows)
    ids = {item: i for i, item in enumerate(sorted({item for *_, item in events}), start=1)}
    users: dict[int, list[int]] = {}
    for user, _, item in events:
        users.setdefault(user, []).append(ids[item])
    histories = tuple(tuple(history) for history in users.values() if len(history) >= 3)
    return Histories(name, histories, len(ids))


def generate(users: int = 943, items: int = 1682, seed: int = 0) -> str:
    """The text of a data file with random histories, as large as MovieLens-100K.

    The next item is always near the one before, so that there is something to learn.
    """
    rng = random.Random(seed)
    lines = [HEADER]
    for user in range(1, users + 1):
        here = rng.randrange(items)
        for when in range(min(20 + int(rng.expovariate(1 / 86)), 737)):
            here = (here + rng.randrange(1, 9)) % items
            lines.append(f"{user}\t{here + 1}\t1\t{when}")
    return "\n".join(lines) + "\n"


def pad(history: tuple[int, ...], length: int) -> list[int]:
    """The newest `length` items of a history, filled up with zeros at the end."""
    newest = list(history[-length:])
    return newest + [0] * (length - len(newest))


def batches(
    data: Histories, steps: int, batch: int, length: int, negatives: int, seed: int
) -> Iterator[Batch]:
    """`steps` random batches. Equal arguments give equal batches.

    Held-out items are neither in a history nor a target. batch: B. length: N. negatives: K.
    """
    rng = random.Random(seed)
    for _ in range(steps):
        users = rng.sample(data.users, batch)
        history = [pad(user[:-2], length) for user in users]
        target = [pad(user[1:-1], length) for user in users]
        sampled = rng.sample(range(1, data.items + 1), negatives)
        yield Batch(torch.tensor(history), torch.tensor(target), torch.tensor(sampled))
