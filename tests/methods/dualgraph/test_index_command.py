"""`assay dualgraph index` as a user types it."""

import pytest

from assay.cli import main


@pytest.fixture
def assay(tmp_path, monkeypatch, capsys, own_cache):
    """Run the command line in a folder of its own; returns what it printed, or its one line of complaint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["dualgraph", "index", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert (end.value.code or 0) == code, err
        if code:
            assert err.count("\n") == 1, err
        return err if code else out

    return run


@pytest.fixture
def docs(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Cats\n\nCats purr.")
    (tmp_path / "docs" / "b.png").write_bytes(b"x")
    return tmp_path / "docs"


def test_indexing(assay, docs, own_cache):
    printed = assay("docs", "--show-skipped")
    assert "1 documents, 1 passages (1 added, 0 changed, 0 removed)" in printed
    assert "1 files skipped: 1 x not a supported kind (.png)" in printed
    assert "b.png: not a supported kind (.png)" in printed
    assert f"The index is in {own_cache}" in printed
    assert "(0 added, 0 changed, 0 removed)" in assay("docs")
    assert "(1 added, 0 changed, 0 removed)" in assay("docs", "--rebuild")
    assert assay("docs", "--quiet") == ""
    assert "The index is in place" in assay("docs", "--place", "place")
    assert (docs.parent / "place" / "index.sqlite").is_file()


def test_embeddings_on_the_command_line(assay, docs, monkeypatch):
    from assay.methods.dualgraph import embeddings

    monkeypatch.setattr(embeddings, "default_encoder", lambda: embeddings.HashedWords(64))
    assert "1 passages have embeddings" in assay("docs", "--embeddings")
    assert "1 passages have embeddings" in assay("docs")
    assert "have embeddings" not in assay("docs", "--no-embeddings")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "missing does not exist"),
        (["docs/a.md"], "is not a folder"),
        (["docs", "--max-megabytes", "0"], "--max-megabytes must be a positive number"),
        (["docs", "--max-megabytes", "nan"], "--max-megabytes must be a positive number"),
        (["docs", "--max-megabytes", "0.000001"], "nothing in"),
        (["docs", "--max-megabytes", "x"], "max-megabytes"),
        (["docs", "--place", "docs/a.md/index"], "cannot be written"),
    ],
)
def test_mistakes(assay, docs, arguments, message):
    assert message in assay(*arguments, code=2)
