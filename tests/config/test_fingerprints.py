"""What a hash over files notices."""

from pathlib import Path

import pytest

from glm52_tbench2.config.fingerprints import entries, folder_hash, hash_files


def hashed(folder: Path) -> str:
    return hash_files(entries(folder, deep=True))


@pytest.mark.parametrize("megabytes", [1, 17])
def test_a_fine_tune_of_the_same_names_and_sizes_is_another(tmp_path: Path, megabytes: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(megabytes * 2**20))
    before = hashed(tmp_path)
    path.write_bytes(b"\1" * megabytes * 2**20)
    assert hashed(tmp_path) != before


def test_weights_behind_a_link_are_known_by_their_contents(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "blob").write_bytes(b"one")
    (tmp_path / "model" / "model.safetensors").symlink_to("../blob")
    before = folder_hash(tmp_path / "model")
    (tmp_path / "blob").write_bytes(b"two")
    assert folder_hash(tmp_path / "model") != before


def test_one_byte_of_a_small_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(16 * 2**20))
    before = hashed(tmp_path)
    with path.open("r+b") as file:
        file.write(b"x")
    assert hashed(tmp_path) != before
