"""The index of a folder: what is found, what changes when files change, and what damage looks like."""

import os
import random
import sqlite3
import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.dualgraph import index, vectors
from assay.methods.dualgraph.embeddings import HashedWords
from assay.methods.dualgraph.index import index_place, letters, open_database, update_index
from assay.methods.dualgraph.local_search import LocalBackend, match_expression
from assay.methods.dualgraph.readers import read_file
from assay.methods.dualgraph.records import Hit, ReadFailed, SearchBackend

CATS = "# Cats\n\n" + "Cats purr when they are content. " * 5
DOGS = "# Dogs\n\n" + "Dogs bark at strangers and wag their tails. " * 5


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "docs"
    (root / "animals").mkdir(parents=True)
    (root / "animals" / "cats.md").write_text(CATS)
    (root / "animals" / "dogs.md").write_text(DOGS)
    (root / "code.py").write_text("def purr(volume):\n    return volume\n")
    (root / "picture.png").write_bytes(b"\x89PNG")
    return root


@pytest.fixture
def place(tmp_path):
    return tmp_path / "index"


def found(backend, query, k=5):
    return [hit.title for hit in backend.search(query, k)]


def content(place):
    """Everything that an index holds, without numbers that depend on the order of updates."""
    connection = open_database(place)
    rows = connection.execute(
        "SELECT path, sha256, title, pages, text, group_concat(start || '-' || stop) FROM documents "
        "LEFT JOIN passages ON document = documents.id GROUP BY documents.id ORDER BY path"
    ).fetchall()
    # What the full-text index counts of every term: nothing may stay of what is gone.
    connection.execute("CREATE VIRTUAL TABLE temp.terms USING fts5vocab('main', 'words', 'col')")
    terms = connection.execute("SELECT term, col, doc, cnt FROM temp.terms ORDER BY term, col").fetchall()
    connection.close()
    return rows, terms


def test_index_and_search(folder, place):
    report = update_index(folder, place)
    assert (report.documents, report.added, report.changed, report.removed) == (3, 3, 0, 0)
    assert report.skipped == (("picture.png", "not a supported kind (.png)"),)
    assert report.embedded == 0
    backend = LocalBackend(folder, place, refresh=False)
    assert isinstance(backend, SearchBackend)
    hit = backend.search("why do cats purr?", 3)[0]
    assert hit.title == "Cats"
    assert hit.url == (folder / "animals" / "cats.md").resolve().as_uri()
    assert hit.backend == backend.name == f"local:{folder}"
    document = backend.read(hit)
    assert document.title == "Cats"
    assert " ".join(document.text[slice(*hit.span)].split()) == hit.snippet
    assert found(backend, "volume") == ["code"]
    assert found(backend, "nothing of this") == []
    assert found(backend, "?!") == []
    backend.close()
    assert found(backend, "strangers") == ["Dogs"]


def test_results_can_be_left_out(folder, place):
    backend = LocalBackend(folder, place)
    first = backend.search("cats dogs", 1)
    rest = backend.search("cats dogs", 5, exclude={first[0].key})
    assert first[0].key not in {hit.key for hit in rest}
    assert {hit.title for hit in (*first, *rest)} == {"Cats", "Dogs"}
    with pytest.raises(InputError, match="at least 1, got 0"):
        backend.search("cats", 0)


def test_only_what_changed_is_read(folder, place, monkeypatch):
    update_index(folder, place)
    read = []

    def watched(path, **options):
        read.append(path.name)
        return read_file(path, **options)

    monkeypatch.setattr(index, "read_file", watched)
    assert update_index(folder, place).added == 0
    assert read == []
    (folder / "animals" / "cats.md").write_text(CATS.replace("purr", "meow"))
    (folder / "animals" / "dogs.md").unlink()
    (folder / "birds.txt").write_text("Birds sing at dawn.")
    os.utime(folder / "code.py", ns=(1, 1))
    report = update_index(folder, place)
    assert sorted(read) == ["birds.txt", "cats.md", "code.py"]
    assert (report.documents, report.added, report.changed, report.removed) == (3, 1, 1, 1)
    backend = LocalBackend(folder, place, refresh=False)
    assert found(backend, "purr") == ["code"]
    assert found(backend, "meow") == ["Cats"]
    assert found(backend, "bark") == []
    assert found(backend, "sing") == ["birds"]


def test_a_file_that_becomes_unreadable_leaves_and_returns(folder, place):
    update_index(folder, place)
    (folder / "animals" / "cats.md").write_bytes(b"\0\1\2\3")
    report = update_index(folder, place)
    assert ("animals/cats.md", "binary") in report.skipped
    assert report.removed == 1
    assert found(LocalBackend(folder, place, refresh=False), "content") == []
    (folder / "animals" / "cats.md").write_text(CATS)
    assert update_index(folder, place).added == 1


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(("", "cat", "dog 北京大学", "cat dog"))),
        max_size=8,
    )
)
@example([("a", "dog 北京大学"), ("a", "cat"), ("a", "")])
@settings(max_examples=12, deadline=None)
def test_updates_lead_where_a_new_index_would(tmp_path_factory, changes):
    tmp_path = tmp_path_factory.mktemp("changes")
    root = tmp_path / "docs"
    root.mkdir()
    (root / "always.txt").write_text("always here")
    for moment, (name, text) in enumerate(changes):
        file = root / f"{name}.txt"
        if text:
            file.write_text(f"{text} of {name}")
            os.utime(file, ns=(moment, moment))
        else:
            file.unlink(missing_ok=True)
        update_index(root, tmp_path / "updated")
    update_index(root, tmp_path / "updated")
    update_index(root, tmp_path / "fresh")
    assert content(tmp_path / "updated") == content(tmp_path / "fresh")
    updated, fresh = (LocalBackend(root, tmp_path / name, refresh=False) for name in ("updated", "fresh"))
    for query in ("cat", "dog", "北京", "always"):
        assert sorted(hit.key for hit in updated.search(query, 9)) == sorted(
            hit.key for hit in fresh.search(query, 9)
        )
    updated.close()
    fresh.close()


def test_what_lies_hidden_or_outside_is_left_out(folder, place, tmp_path):
    (tmp_path / "secret.txt").write_text("the secret word is xyzzy")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "inside.txt").symlink_to(folder / "code.py")
    (folder / "broken.txt").symlink_to(folder / "nowhere")
    (folder / ".git").mkdir()
    (folder / ".git" / "config.txt").write_text("xyzzy")
    (folder / ".hidden.txt").write_text("xyzzy")
    (folder / "run").mkdir()
    (folder / "run" / "run.sqlite").write_text("")
    (folder / "run" / "report.md").write_text("xyzzy")
    report = update_index(folder, place)
    assert found(LocalBackend(folder, place, refresh=False), "xyzzy") == []
    reasons = dict(report.skipped)
    assert reasons["link.txt"] == "a link that leads out of the folder"
    assert reasons["broken.txt"] == "cannot be read"
    assert report.documents == 4


def test_copies_of_a_document_are_one_result(folder, place):
    (folder / "copy.md").write_text(CATS)
    backend = LocalBackend(folder, place)
    assert found(backend, "purr content") == ["Cats", "code"]


def test_large_files_are_skipped_until_the_limit_is_raised(folder, place):
    (folder / "large.txt").write_text("elephant " * 1000)
    assert ("large.txt", "larger than 0.00191 MB") in update_index(folder, place, max_bytes=2000).skipped
    assert update_index(folder, place).documents == 4


def test_folders_with_nothing_to_read(tmp_path, own_cache):
    with pytest.raises(InputError, match="does not exist"):
        update_index(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        update_index(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there are no files"):
        update_index(tmp_path / "empty")
    (tmp_path / "empty" / "a.png").write_bytes(b"x")
    (tmp_path / "empty" / "b.pdf").write_bytes(b"x")
    with pytest.raises(InputError, match=r"2 files skipped: .*\(e.g. a.png\)") as error:
        update_index(tmp_path / "empty")
    assert "damaged PDF" in str(error.value)
    with pytest.raises(InputError, match="at least 1 byte"):
        update_index(tmp_path / "empty", max_bytes=0)


def test_an_index_belongs_to_one_folder(folder, place, tmp_path, own_cache):
    update_index(folder, place)
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("text")
    with pytest.raises(InputError, match="holds the index of"):
        update_index(other, place)
    with pytest.raises(InputError, match="does not hold the index of"):
        LocalBackend(other, place, refresh=False)
    assert update_index(other).place == index_place(other)
    assert index_place(other).is_relative_to(own_cache)
    with pytest.raises(InputError, match="there is no index in"):
        LocalBackend(folder, refresh=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        update_index(other, tmp_path / "file" / "index")


def test_damage_is_told_and_can_be_repaired(folder, place):
    update_index(folder, place)
    file = place / "index.sqlite"
    data = bytearray(file.read_bytes())
    data[:100] = random.Random(0).randbytes(100)
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"damaged.*--rebuild"):
        update_index(folder, place)
    assert file.read_bytes() == data
    with pytest.raises(InputError, match=r"damaged.*--rebuild"):
        LocalBackend(folder, place, refresh=False)
    assert update_index(folder, place, rebuild=True).documents == 3


def test_an_index_of_another_version_is_built_anew(folder, place):
    update_index(folder, place)
    connection = sqlite3.connect(place / "index.sqlite")
    connection.execute("PRAGMA user_version = 77")
    connection.close()
    with pytest.raises(InputError, match="version 77"):
        open_database(place)
    assert update_index(folder, place).added == 3


def test_an_interrupted_update_keeps_what_was_committed(folder, place, monkeypatch):
    monkeypatch.setattr(index, "_COMMIT_EVERY", 1)
    told = []

    def interrupt(stage, done, total):
        told.append((stage, done, total))
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update_index(folder, place, progress=interrupt)
    assert told == [("reading", 0, 4), ("reading", 1, 4), ("reading", 2, 4)]
    report = update_index(folder, place)
    assert (report.documents, report.added) == (3, 2)


def test_many_threads_search_one_backend(folder, place):
    backend = LocalBackend(folder, place)
    answers = []

    def ask():
        answers.extend(found(backend, "purr content") for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [["Cats", "code"]] * 80
    backend.close()


def test_only_documents_of_the_folder_are_read(folder, place, tmp_path):
    backend = LocalBackend(folder, place)
    (tmp_path / "secret.txt").write_text("secret")
    for url in (
        (tmp_path / "secret.txt").as_uri(),
        (folder / "animals" / ".." / ".." / "secret.txt").as_uri(),
        f"file://host{folder}/code.py",
        "https://x.example/code.py",
        "code.py",
    ):
        with pytest.raises(ReadFailed, match="is not a document of"):
            backend.read(Hit("t", url, "s"))
    # What was indexed is the source of evidence, also when the file is gone by now.
    hit = backend.search("volume", 1)[0]
    (folder / "code.py").unlink()
    assert "volume" in backend.read(hit).text


def test_names_with_signs_and_spaces(folder, place):
    strange = folder / "50% #1 (naïve).txt"
    strange.write_text("zebra crossing")
    backend = LocalBackend(folder, place)
    hit = backend.search("zebra", 1)[0]
    assert backend.read(hit).text == "zebra crossing"


@pytest.mark.parametrize(
    ("query", "expression"),
    [
        ("What is CMAKE_BUILD_TYPE?", '"CMAKE_BUILD_TYPE"'),
        ("os.path and C++", '"os.path" OR "C"'),
        ('"exact phrase" word', '"exact phrase" OR "word"'),
        ("what is the", '"what" OR "is" OR "the"'),
        ('a "b', '"b"'),
        ("北京大学 map", 'letters : "北京" OR letters : "京大" OR letters : "大学" OR "map"'),
        ("fraud OR AND NEARBY(x)", '"fraud" OR "NEARBY" OR "x"'),
        ("*?^ -", None),
        ("", None),
    ],
)
def test_queries_become_expressions(query, expression):
    assert match_expression(query) == expression


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_query_is_answered(query):
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5(title, body, letters, content='')")
    expression = match_expression(query)
    if expression is not None:
        connection.execute("SELECT rowid FROM words WHERE words MATCH ?", (expression,)).fetchall()
    connection.close()


def test_scripts_without_spaces_are_found_by_two_letters(tmp_path, place):
    root = tmp_path / "docs"
    root.mkdir()
    (root / "zh.txt").write_text("知识图谱把实体连接起来。北京是中国的首都。")
    (root / "ja.txt").write_text("東京は日本の首都です。")
    (root / "th.txt").write_text("กรุงเทพเป็นเมืองหลวง")
    (root / "de.txt").write_text("Die Hauptstadt heißt Berlin; Straßenbahnen fahren dort.")
    backend = LocalBackend(root, place)
    assert found(backend, "图谱") == ["zh"]
    assert found(backend, "日本の首都")[0] == "ja"
    assert found(backend, "เมือง")[0] == "th"
    assert sorted(found(backend, "首都")) == ["ja", "zh"]
    assert found(backend, "hauptstadt") == ["de"]
    assert letters("abc") == ""
    assert letters("北京a大") == "北京 大"


class Meanings:
    """An encoder that knows four words and puts the animals that purr beside cats."""

    name = "meanings"
    dimensions = 4

    def __init__(self):
        self.texts = []

    def encode(self, texts):
        self.texts += texts
        rows = np.zeros((len(texts), 4), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for place, words in enumerate((("cat", "feline"), ("dog",), ("bird",))):
                row[place] = sum(text.lower().count(word) for word in words)
            row[3] = 0.1
            row /= np.linalg.norm(row)
        return rows


def test_embeddings_find_what_words_do_not(folder, place):
    encoder = Meanings()
    assert update_index(folder, place, embeddings=True, encoder=encoder).embedded == 3
    backend = LocalBackend(folder, place, encoder=encoder)
    assert found(backend, "feline", 1) == ["Cats"]
    # A hit of both rankings comes before a hit of one.
    assert found(backend, "feline purr", 1) == ["Cats"]
    assert backend.search("feline", 1)[0].score == pytest.approx(1 / 61)
    assert found(backend, "") == []


def test_only_new_passages_are_embedded(folder, place):
    encoder = Meanings()
    update_index(folder, place, embeddings=True, encoder=encoder)
    assert len(encoder.texts) == 3
    (folder / "birds.txt").write_text("Birds sing at dawn.")
    (folder / "animals" / "dogs.md").unlink()
    assert update_index(folder, place, encoder=encoder).embedded == 3
    assert encoder.texts[3:] == ["birds\nBirds sing at dawn."]
    assert found(LocalBackend(folder, place, refresh=False, encoder=encoder), "bird dawn", 1) == ["birds"]
    stored = vectors.open_vectors(open_database(place), place)
    assert stored is not None
    np.testing.assert_allclose(np.linalg.norm(stored.rows.astype(float), axis=1), 1, atol=1e-3)
    assert sorted(path.name for path in place.glob("*.npy")) == ["ids-2.npy", "vectors-2.npy"]
    assert update_index(folder, place, encoder=encoder).embedded == 3
    assert update_index(folder, place, rebuild=True, encoder=encoder).embedded == 3
    assert update_index(folder, place, embeddings=False).embedded == 0
    assert list(place.glob("*.npy")) == []
    assert update_index(folder, place).embedded == 0


def test_another_encoder_embeds_everything_again(folder, place):
    update_index(folder, place, embeddings=True, encoder=Meanings())
    with pytest.raises(InputError, match="embedded by meanings, and the query would be by hashed-words"):
        LocalBackend(folder, place, refresh=False, encoder=HashedWords()).search("cats", 1)
    assert update_index(folder, place, embeddings=True, encoder=HashedWords(64)).embedded == 3
    assert found(LocalBackend(folder, place, refresh=False, encoder=HashedWords(64)), "cats", 1) == ["Cats"]


def test_interrupted_embedding_goes_on(folder, place, monkeypatch):
    monkeypatch.setattr(vectors, "_SAVE_EVERY", 1)
    monkeypatch.setattr(vectors, "_CHUNK", 1)
    encoder = Meanings()

    def interrupt(stage, done, total):
        if (stage, done) == ("embedding", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update_index(folder, place, embeddings=True, encoder=encoder, progress=interrupt)
    assert len(encoder.texts) == 2
    assert update_index(folder, place, encoder=encoder).embedded == 3
    assert len(encoder.texts) == 3


def test_damaged_embeddings_are_told(folder, place):
    update_index(folder, place, embeddings=True, encoder=Meanings())
    file = place / "vectors-1.npy"
    np.save(file, np.zeros((7, 4), dtype=np.float16))
    with pytest.raises(InputError, match=r"embeddings .* are damaged"):
        LocalBackend(folder, place, refresh=False, encoder=Meanings())
    file.write_bytes(b"\x80\x04pickle")
    with pytest.raises(InputError, match=r"embeddings .* are damaged"):
        LocalBackend(folder, place, refresh=False, encoder=Meanings())


@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_nearest_is_exact(n, k, seed):
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(n, 8))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    query = generator.normal(size=8)
    stored = vectors.Vectors("x", np.arange(n) * 3 + 1, rows)
    scores = rows.astype(np.float32) @ query.astype(np.float32)
    nearest = stored.nearest(query, k)
    assert [score for _, score in nearest] == pytest.approx(sorted(scores, reverse=True)[:k], abs=1e-5)
    assert len({passage for passage, _ in nearest}) == min(n, k)


def test_two_updates_at_once_make_one_index(folder, place):
    reports, ready = [], threading.Barrier(2)

    def update():
        ready.wait(timeout=10)
        reports.append(update_index(folder, place))

    threads = [threading.Thread(target=update) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.added for report in reports) == [0, 3]


def test_progress_of_a_refresh(folder, place):
    told = []
    LocalBackend(folder, place, progress=lambda *stage: told.append(stage)).close()
    assert told[0] == ("reading", 0, 4)
    assert told[-1] == ("reading", 4, 4)
