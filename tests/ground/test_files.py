"""An interrupted write leaves the old file or the new one, and nothing else."""

import json
import math
import stat

import pytest

from assay.files import as_json, replacing, replacing_folder, write_json, write_text


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "results.json"
    write_text(target, "old")
    with pytest.raises(RuntimeError), replacing(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_reader_of_the_old_file_is_not_disturbed(tmp_path):
    target = tmp_path / "results.json"
    write_text(target, "old")
    with target.open() as reader:
        write_text(target, "something new")
        assert reader.read() == "old"


def test_a_written_file_has_the_usual_mode(tmp_path):
    write_text(tmp_path / "a.txt", "text")
    (tmp_path / "b.txt").write_text("text")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.txt", "b.txt")]
    assert modes[0] == modes[1]


def test_the_temporary_name_keeps_the_suffix(tmp_path):
    with replacing(tmp_path / "arrays.npz") as temporary:
        assert temporary.suffix == ".npz"
        assert temporary.parent == tmp_path


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "model"
    with replacing_folder(target) as folder:
        (folder / "old").touch()
    with replacing_folder(target) as folder:
        (folder / "new").touch()
    assert [path.name for path in target.iterdir()] == ["new"]
    with pytest.raises(RuntimeError), replacing_folder(target) as folder:
        (folder / "half").touch()
        raise RuntimeError
    assert [path.name for path in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]


def test_json_is_strict(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"value": math.nan})
    assert not (tmp_path / "x.json").exists()
    values = as_json({"limits": (1.0, math.inf), "sizes": {3, 1}})
    assert values == {"limits": [1.0, "inf"], "sizes": [1, 3]}
    assert float(json.loads(json.dumps(values))["limits"][1]) == math.inf
