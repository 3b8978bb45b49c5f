"""The demo's data: what is read, what is held out, what is generated."""

from pathlib import Path

import pytest

from examples.movielens import data

# Out of order in time, with a gap in the ids, a tie in time, and a user too short to be used.
FILE = "\n".join(
    [
        data.HEADER,
        "7\t30\t5\t300",
        "7\t10\t5\t100",
        "7\t20\t5\t200",
        "8\t50\t1\t100",
        "8\t20\t1\t100",
        "8\t10\t1\t500",
        "9\t10\t1\t1",
        "9\t20\t1\t2",
        "",
    ]
)


def test_histories_are_in_order_of_time_with_dense_ids():
    found = data.parse(FILE, "tiny")
    assert found.items == 4
    assert found.users == ((1, 2, 3), (2, 4, 1))


@pytest.mark.parametrize(
    ("history", "padded"), [((5, 6), [5, 6, 0, 0]), ((1, 2, 3, 4, 5), [2, 3, 4, 5])]
)
def test_pad_keeps_the_newest(history: tuple[int, ...], padded: list[int]):
    assert data.pad(history, 4) == padded


def test_generated_file_reads_back(tmp_path: Path):
    path = tmp_path / "generated.inter"
    path.write_text(data.generate(users=20, items=50))
    found = data.load(path)
    assert found.name == "generated set"
    assert len(found.users) == 20
    assert found.items <= 50
    assert all(1 <= item <= found.items for user in found.users for item in user)


def test_obtain_generates_where_nothing_can_be_downloaded(tmp_path: Path, monkeypatch, capsys):
    def offline(cache: Path) -> None:
        raise OSError("no network")

    monkeypatch.setattr(data, "download", offline)
    assert data.obtain(tmp_path) == tmp_path / "generated.inter"
    assert "cannot be had" in capsys.readouterr().err


def test_obtain_prefers_what_it_has(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(data, "download", lambda cache: pytest.fail("downloaded again"))
    (tmp_path / "ml-100k.inter").write_text(FILE)
    assert data.load(data.obtain(tmp_path)).name == "MovieLens-100K"


def histories() -> data.Histories:
    return data.parse(data.generate(users=30, items=60), "generated")


def test_batches_repeat_for_a_seed_and_differ_between_seeds():
    def drawn(seed: int) -> list[list[int]]:
        batches = data.batches(histories(), 3, 4, 16, negatives=5, seed=seed)
        return [batch.history.flatten().tolist() for batch in batches]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_target_is_the_next_item_and_the_last_item_is_held_out():
    # Ids that name user and place, so that a leak of a held-out item would show.
    users = tuple(tuple(range(100 * u + 1, 100 * u + 12)) for u in range(5))
    known = data.Histories("named", users, 500)
    held_out = {user[-1] for user in users}
    for batch in data.batches(known, 4, 3, 16, negatives=5, seed=0):
        assert batch.history.shape == batch.target.shape == (3, 16)
        assert batch.negatives.unique().numel() == 5
        real = batch.target != 0
        assert (batch.target[real] == batch.history[real] + 1).all()
        assert not held_out & set(batch.target.flatten().tolist())
        assert real.sum(1).tolist() == [9, 9, 9]
